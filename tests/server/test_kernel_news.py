"""Which kernel lines are judged when: one session's `KernelNews`, and an agent's `KernelLog` beside it on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from corral.agent.kernel_log import KernelLog
from corral.domain import kernel_lines
from corral.protocol.gpu_faults import KernelLine
from corral.protocol.messages import Report
from corral.server import kernel_news
from corral.server.kernel_news import AGAIN_AFTER_S, MANY, MANY_AFTER_S, MOST_REMEMBERED, READ_BURST, KernelNews
from corral.usecases.gpu_evidence import Judged


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Told:
    """One session whose machine tells lines, and a site that judges what is due at once."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.news = KernelNews(self.clock)
        self.seen: dict[str, int] = {}

    def due(self, *lines: KernelLine, boot: str = "b") -> bool:
        return self.news.due(report(lines, boot))

    def judge(self, *lines: KernelLine, boot: str = "b") -> None:
        before = self.seen.get(boot, -1)
        self.seen = {boot: max(before, *(line.seq for line in lines))}
        self.news.judged(report(lines, boot), Judged(before, self.seen[boot]))


@pytest.fixture
def told() -> Told:
    return Told()


def report(lines: Iterable[KernelLine], boot: str = "b") -> Report:
    return Report(1, "1", boot, 1, "digest", kernel_lines=tuple(lines))


def xid(seq: int, number: int = 79, slot: int = 1) -> KernelLine:
    return KernelLine(seq, f"NVRM: Xid (PCI:0000:{slot:02x}:00): {number}, pid=7, name=python3, Ch {seq:08x}")


def test_a_new_fault_is_due_at_once_and_the_same_again_after_a_minute(told: Told) -> None:
    assert told.due(xid(1))
    told.judge(xid(1))
    assert not told.due(xid(1))
    assert not told.due(xid(1), xid(2))
    told.clock.now += AGAIN_AFTER_S - 1
    assert not told.due(xid(2), xid(3))
    told.clock.now += 1
    assert told.due(xid(2), xid(3))


def test_another_number_and_another_slot_are_due_at_once(told: Told) -> None:
    told.judge(xid(1))
    assert not told.due(xid(2))
    assert told.due(xid(2), xid(3, 48))
    assert told.due(xid(2), xid(3, slot=2))


def test_a_number_that_was_harmless_before_and_is_fatal_now_is_due_at_once(told: Told) -> None:
    link = "NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT {} XC0 i0 Link 01 (0x021425c6)"
    told.judge(KernelLine(1, link.format("Nonfatal")))
    assert not told.due(KernelLine(2, link.format("Nonfatal")))
    assert told.due(KernelLine(2, link.format("Nonfatal")), KernelLine(3, link.format("Fatal")))


def test_what_is_not_judged_yet_stays_due(told: Told) -> None:
    told.news.judged(report([xid(1), xid(2, 48)]), Judged(-1, 1))
    assert told.due(xid(2, 48))


def test_another_boot_counts_its_lines_anew(told: Told) -> None:
    told.judge(xid(500))
    assert not told.due(xid(3))
    told.clock.now += AGAIN_AFTER_S
    assert not told.due(xid(3)), "judged before"
    assert told.due(xid(3), boot="another")
    told.judge(xid(3), boot="another")
    assert told.due(xid(4, 48), boot="another")


def test_lines_of_one_number_in_another_boot_are_read_anew(told: Told) -> None:
    told.judge(xid(1))
    assert not told.due(xid(2))
    assert told.due(xid(2, 48), boot="another")


def test_what_was_cleared_is_due_when_it_is_said_again(told: Told) -> None:
    told.judge(xid(1))
    assert not told.due(xid(2))
    told.news.forget()
    assert told.due(xid(2))


def test_beyond_so_many_others_a_new_one_waits_until_some_are_forgotten(told: Told) -> None:
    for first in range(0, MOST_REMEMBERED, 50):
        told.judge(*(xid(n, 1_000 + n) for n in range(first, first + 50)))
        told.clock.now += 0.5  # the bucket of lines fills
    assert not told.due(xid(9_000))
    told.clock.now += 2 * 3_600
    assert told.due(xid(9_000)), "nothing was taken in meanwhile"


def test_many_lines_that_wait_are_judged_soon_whatever_they_say(told: Told) -> None:
    told.judge(xid(0))
    waiting = [xid(n) for n in range(1, MANY + 1)]
    told.clock.now += MANY_AFTER_S - 1
    assert not told.due(*waiting)
    assert not told.due(*waiting[1:])
    told.clock.now += 1
    assert not told.due(*waiting[1:])
    assert told.due(*waiting)


def test_numbers_that_no_kernel_has_are_nothing_new(told: Told) -> None:
    assert not told.due(xid(-1), xid(2**62))


class Reads:
    """Counts the lines that are taken apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._read = kernel_lines.read
        monkeypatch.setattr(kernel_news, "read", self)

    def __call__(self, line: str) -> object:
        self.count += 1
        return self._read(line)


def test_a_line_is_read_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    told.judge(xid(0))
    for n in range(1, 50):
        assert not told.due(*(xid(m) for m in range(1, n + 1)))
    told.judge(*(xid(m) for m in range(1, 50)))
    assert reads.count == 50


def test_of_one_session_only_so_many_lines_a_second_are_read(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    told.judge(xid(0))
    for n in range(1, 100):
        told.due(*(xid(1_000 * n + m) for m in range(256)))
    assert reads.count <= READ_BURST + 1
    told.clock.now += 100
    assert told.due(xid(10**6, 48)), "what was not read is read when it comes again"


class Storm:
    """An agent's log of a fake kernel, whose agent reports once a second; the site judges and confirms what is due."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self._path = path
        path.touch()
        self.log = KernelLog(path, self.clock)
        self.news = KernelNews(self.clock)
        self.seen, self.said = -1, 0
        self.judged_at: dict[str, float] = {}
        self.transactions = 0

    def say(self, *texts: str) -> None:
        with self._path.open("a") as file:
            for text in texts:
                self.said += 1
                file.write(f"3,{self.said},{self.said},-;{text}\n")

    def second(self) -> None:
        self.log.poll()
        lines = self.log.lines()
        if lines and self.news.due(report(lines)):
            self.transactions += 1
            self.news.judged(report(lines), Judged(self.seen, lines[-1].seq))
            self.seen = lines[-1].seq
            for line in lines:
                self.judged_at.setdefault(line.text, self.clock.now)
            self.log.confirmed(self.seen)
        self.clock.now += 1


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    made = Storm(tmp_path / "kmsg")
    yield made
    made.log.close()


FAULT = "NVRM: Xid (PCI:0000:77:00): 119, pid=430, name=nv_queue, Timeout waiting for RPC from GSP!"


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_an_applications_storm_holds_up_no_other_gpus_fault(storm: Storm, slots: int) -> None:
    for second in range(300):
        storm.say(*(xid(second * 50 + n, 31, n % slots).text for n in range(max(50, slots))))
        if second == 100:
            storm.say(FAULT)
        storm.second()
    assert storm.judged_at[FAULT] - 1100 <= 2 * MANY_AFTER_S
    assert storm.transactions <= 300 / MANY_AFTER_S + 10, "and costs few transactions"


def test_a_fault_behind_many_others_is_judged_soon(storm: Storm) -> None:
    storm.say(*(xid(n, 31, n % 250).text for n in range(1_000)), FAULT)
    for _ in range(60):
        storm.second()
    assert storm.judged_at[FAULT] - 1000 <= 6 * MANY_AFTER_S


RAS = "amdgpu 0000:{:02x}:00.0: amdgpu: {} uncorrectable hardware errors detected in umc block"
LINK = "NVRM: Xid (PCI:0000:01:00): 74, pid=7, name=x, NVLink: error on link 3({}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
UNIT = "NVRM: Xid (PCI:0000:01:00): 149, UNIT_{} {} XC0 i0 Link 01 (0x021425c6)"
ACTION = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from {} to {}"


@pytest.mark.parametrize(
    ("often", "fatal"),
    [
        ([RAS.format(1, "{0}")], "amdgpu 0000:09:00.0: amdgpu: GPU reset(1) failed"),
        ([RAS.format(1, "104{0:04}")], RAS.format(1, 3)),
        ([LINK.format("0x1"), LINK.format("0x800000")], LINK.format("0x10000")),
        ([UNIT.format(unit, "Nonfatal") for unit in "ABCDEFG"], UNIT.format("A", "Fatal")),
        (
            [ACTION.format(f"0x{n} (Action {chr(65 + n)})", "0x0 (None)") for n in range(1, 8)],
            ACTION.format("0x0 (None)", "0x1 (GPU Reset Required)"),
        ),
    ],
)
def test_a_fatal_line_within_a_storm_of_its_like_is_judged_soon(storm: Storm, often: list[str], fatal: str) -> None:
    for second in range(200):
        texts = [often[n % len(often)].format(9_000 + second * 50 + n) for n in range(50)]
        if second == 100:
            texts.insert(25, fatal)
        storm.say(*texts)
        storm.second()
    assert storm.judged_at[fatal] - 1100 <= 2 * MANY_AFTER_S
    assert storm.transactions <= 200 / MANY_AFTER_S + 10
