"""What a machine says of an allocation against what was asked (design decision 1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corral.domain.allocations import Held, Report, Seen, Verdict, bounded, judge, legible

RUNS = Held(generation=2, stop_asked=False, overdue=False, provisioning=False, ever_seen=True, gpus=["g1", "g2"])
STOPS = replace(RUNS, stop_asked=True, generation=3)
STARTS = replace(RUNS, provisioning=True)


def said(state: Seen, generation: int = 2, **values: object) -> Report:
    return replace(Report("a", generation, state, gpus=("g2", "g1")), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "report", "verdict"),
    [
        (RUNS, said(Seen.RUNNING), Verdict.MATCHES),
        (RUNS, said(Seen.RUNNING, generation=1), Verdict.MATCHES),
        (RUNS, said(Seen.RUNNING, gpus=("g1",)), Verdict.DIFFERS),
        (RUNS, said(Seen.RESTARTING), Verdict.DIFFERS),
        (RUNS, said(Seen.GONE), Verdict.DIFFERS),
        (RUNS, None, Verdict.DIFFERS),
        (replace(RUNS, behind=True), None, Verdict.ENDED),
        (replace(RUNS, behind=True, ever_seen=False), None, Verdict.CONVERGING),
        (replace(RUNS, behind=True), said(Seen.RESTARTING), Verdict.DIFFERS),
        (RUNS, said(Seen.FAILED), Verdict.FAILED),
        (STARTS, said(Seen.PREPARING), Verdict.CONVERGING),
        (replace(STARTS, ever_seen=False), None, Verdict.CONVERGING),
        (STOPS, said(Seen.RUNNING), Verdict.CONVERGING),
        (STOPS, said(Seen.STOPPING, generation=3), Verdict.CONVERGING),
        (STOPS, said(Seen.GONE, generation=3), Verdict.ENDED),
        (STOPS, said(Seen.FAILED, generation=3), Verdict.ENDED),
    ],
)
def test_verdicts(held: Held, report: Report | None, verdict: Verdict) -> None:
    assert judge(held, report).verdict is verdict


def test_gone_frees_nothing_while_the_machine_does_not_know_of_the_stop() -> None:
    assert judge(STOPS, said(Seen.GONE, generation=2)).verdict is Verdict.DIFFERS


def test_gone_after_the_time_limit_ends_it_without_being_told() -> None:
    assert judge(replace(RUNS, overdue=True), said(Seen.GONE)).verdict is Verdict.ENDED


def test_gone_at_a_generation_this_site_lost_ends_it() -> None:
    assert judge(RUNS, said(Seen.GONE, generation=9)).verdict is Verdict.ENDED


def test_a_difference_says_what_is_wanted_and_seen() -> None:
    judgement = judge(RUNS, said(Seen.RUNNING, gpus=("g1",)))
    assert (judgement.wanted, judgement.seen) == ("running with GPUs g1, g2", "running with GPUs g1")


def test_what_machines_say_is_made_fit_for_every_database() -> None:
    assert bounded(10**12) == 2**31 - 1
    assert bounded(-5) == 0
    assert legible("a\x00b\ud800c", 4) == "a\ufffdb?"
