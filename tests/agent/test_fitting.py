"""What containers said is cut so that a report fits into a frame; what else it says stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from corral.agent.allocation import TAIL_BYTES, Allocation
from corral.agent.calls import ThreadCalls
from corral.agent.converge import Converger
from corral.agent.fitting import first_that_fit, fitted
from corral.agent.provisioning_log import LOG_LINE, LOG_SENT
from corral.agent.state import StateFolder
from corral.agent.work import BootClock, End, Record, WorkFolder, WorkMemory
from corral.protocol import codec
from corral.protocol.messages import AllocationReport, AllocationState, Desired, LogLine, Report
from corral.server.serving import MAX_FRAME
from tests.agent.scripted import ScriptedDriver, want


def size(*reports: AllocationReport) -> int:
    return len(codec.encode("report", Report(1, "1", "b", 1, "d", allocations=reports)).encode())


def bare(reports: list[AllocationReport]) -> list[AllocationReport]:
    return [replace(one, log=(), log_tail="") for one in reports]


texts = st.text(st.sampled_from('ax\0\n"\\é漢😀\x1b'), max_size=300)
saying = st.builds(
    lambda lines, tail: AllocationReport(
        "a1",
        1,
        AllocationState.GONE,
        log=tuple(LogLine(n, line) for n, line in enumerate(lines)),
        log_tail=tail,
    ),
    st.lists(texts, max_size=5),
    texts,
)


@given(st.lists(saying, max_size=4), st.integers(0, 2_000))
def test_reports_are_cut_to_the_budget_and_keep_first_lines_and_last_words(
    reports: list[AllocationReport], budget: int
) -> None:
    cut = fitted(reports, budget)
    rest = size() + sum(size(replace(bare([one])[0], log=tuple(replace(n, text="") for n in one.log))) for one in cut)
    assert size(*cut) <= rest + budget
    for before, after in zip(reports, cut, strict=True):
        assert bare([before]) == bare([after])
        assert before.log_tail.endswith(after.log_tail)
        assert [line.n for line in after.log] == [line.n for line in before.log][: len(after.log)]
        assert bool(before.log) == bool(after.log)  # a report more says more, however little fits
        assert all(b.text.startswith(a.text) for b, a in zip(before.log, after.log, strict=False))


@given(st.lists(saying, max_size=4))
def test_what_fits_is_left_as_it_is(reports: list[AllocationReport]) -> None:
    assert fitted(reports, 100_000) == tuple(reports)


def test_a_machine_whose_containers_all_ended_during_an_outage_still_says_so(tmp_path: Path) -> None:
    said = asyncio.run(all_ended(tmp_path))
    assert size(*said) < MAX_FRAME
    assert [one.state for one in said] == [AllocationState.GONE] * 200
    assert all(one.log for one in said)


async def all_ended(tmp_path: Path) -> tuple[AllocationReport, ...]:
    state = StateFolder(tmp_path / "state")
    state.make()
    calls = ThreadCalls(1, "test")
    work = Converger("m1", ScriptedDriver(tmp_path / "containers"), WorkFolder(state), calls, BootClock())
    for n in range(200):
        record = Record(want(id=f"a{n}"), end=End.GONE, log_tail="\0" * TAIL_BYTES)
        work._all[f"a{n}"] = Allocation(record, work)
        for _ in range(LOG_SENT):
            work._all[f"a{n}"]._log.add("漢" * LOG_LINE)
    try:
        return work.reports()
    finally:
        calls.close()


def test_work_that_is_described_fits_into_a_frame_and_each_has_its_turn(tmp_path: Path) -> None:
    keys = tuple("ssh-ed25519 " + "k" * 8_000 for _ in range(20))
    wants = [want(f"a{n}", authorized_keys=keys) for n in range(20)]
    assert [one.id for one in first_that_fit(wants[:2], budget=1)] == ["a0"]

    async def test() -> None:
        calls = ThreadCalls(1, "described")
        work = Converger("m1", ScriptedDriver(tmp_path), WorkMemory(), calls, BootClock())
        work.accept(Desired(tuple(wants)))
        described = set()
        for _ in range(200):
            said = work.describe([one.id for one in wants])
            assert len(codec.encode("described", said).encode()) < MAX_FRAME
            described |= {one.id for one in said.allocations}
        assert described == {one.id for one in wants}
        await work.close()
        calls.close()

    asyncio.run(test())
