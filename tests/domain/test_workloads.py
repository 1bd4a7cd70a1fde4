"""The life of a workload (spec 20): what the removal of its machine does, and what no rule allows."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from corral.domain.errors import Refusal
from corral.domain.workloads import (
    ENDED,
    RestartPolicy,
    Signal,
    State,
    on,
    time_left_s,
    when_its_machine_is_lost,
)

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
LATER = NOW + timedelta(seconds=90)


@pytest.mark.parametrize("state", [State.PROVISIONING, State.ACTIVE, State.OUT_OF_SYNC])
def test_whatever_lives_can_lose_its_machine(state: State) -> None:
    assert on(state, Signal.LOST) is State.FAILED
    assert on(state, Signal.PLACE_AGAIN) is State.PROVISIONING


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("signal", list(Signal))
def test_nothing_happens_to_what_has_ended(state: State, signal: Signal) -> None:
    with pytest.raises(Refusal) as refused:
        on(state, signal)
    assert refused.value.code == "CONFLICT"


@pytest.mark.parametrize(
    ("policy", "stop_asked", "must_end_by", "signal"),
    [
        (RestartPolicy.NEVER, False, None, Signal.LOST),
        (RestartPolicy.ON_MACHINE_LOSS, False, None, Signal.PLACE_AGAIN),
        (RestartPolicy.ON_MACHINE_LOSS, False, LATER, Signal.PLACE_AGAIN),
        (RestartPolicy.ON_MACHINE_LOSS, False, NOW, Signal.LOST),
        (RestartPolicy.ON_MACHINE_LOSS, True, None, Signal.LOST),
    ],
)
def test_what_has_to_end_anyway_is_not_placed_again(
    policy: RestartPolicy, stop_asked: bool, must_end_by: datetime | None, signal: Signal
) -> None:
    assert when_its_machine_is_lost(policy, stop_asked=stop_asked, must_end_by=must_end_by, now=NOW) is signal


def test_what_is_left_of_a_limit_is_rounded_up_and_never_nothing() -> None:
    assert time_left_s(None, NOW) is None
    assert time_left_s(LATER, NOW) == 90
    assert time_left_s(LATER, NOW + timedelta(seconds=0.5)) == 90
    assert time_left_s(LATER, LATER) == 1
