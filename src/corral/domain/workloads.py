"""The life of a workload (spec 20 states, spec 30; design decision 4): a life cycle is data.

Stopping is a flag beside the state; Terminated comes only when the machine has confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum

from corral.domain.errors import Refusal


class Kind(str, Enum):
    COMPUTE_CLUSTER = "compute_cluster"


class State(str, Enum):
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    OUT_OF_SYNC = "out_of_sync"
    TERMINATED = "terminated"
    FAILED = "failed"


ENDED = frozenset({State.TERMINATED, State.FAILED})


class RestartPolicy(str, Enum):
    """What becomes of a workload whose machine is removed by force."""

    NEVER = "never"  # it ends as lost
    ON_MACHINE_LOSS = "on_machine_loss"  # it is placed again elsewhere; what it had stored is not there


class Step(str, Enum):
    """Where Provisioning stands. The agent's own steps are the last four."""

    WAITING = "waiting"
    PLACED = "placed"
    PULLING_IMAGE = "pulling_image"
    STORAGE = "storage"
    STARTING = "starting"
    VERIFYING = "verifying"


class Signal(str, Enum):
    """What happens to a workload."""

    RUNNING = "running"  # the machine reports it started and verified
    MISMATCH = "mismatch"  # asked and seen differ for longer than OUT_OF_SYNC_AFTER
    MATCHES = "matches"  # asked and seen agree again
    PREPARING = "preparing"  # it never ran, and its machine, heard again, still prepares it
    CONFIRMED_GONE = "confirmed_gone"  # it was told to stop and the machine says it is gone
    CANCELLED = "cancelled"  # told to stop before it had a machine
    COULD_NOT_START = "could_not_start"  # the machine says why
    LOST = "lost"  # its machine was removed by force
    PLACE_AGAIN = "place_again"  # the same, and its restart policy says so: it waits for another machine


_P, _A, _O, _T, _F = State.PROVISIONING, State.ACTIVE, State.OUT_OF_SYNC, State.TERMINATED, State.FAILED

TRANSITIONS: Mapping[tuple[State, Signal], State] = {
    (_P, Signal.RUNNING): _A,
    (_P, Signal.MISMATCH): _O,
    (_P, Signal.CONFIRMED_GONE): _T,
    (_P, Signal.CANCELLED): _T,
    (_P, Signal.COULD_NOT_START): _F,
    (_P, Signal.LOST): _F,
    (_P, Signal.PLACE_AGAIN): _P,
    (_A, Signal.MISMATCH): _O,
    (_A, Signal.CONFIRMED_GONE): _T,
    (_A, Signal.COULD_NOT_START): _F,
    (_A, Signal.LOST): _F,
    (_A, Signal.PLACE_AGAIN): _P,
    (_O, Signal.MATCHES): _A,
    (_O, Signal.PREPARING): _P,
    (_O, Signal.RUNNING): _A,
    (_O, Signal.CONFIRMED_GONE): _T,
    (_O, Signal.COULD_NOT_START): _F,
    (_O, Signal.LOST): _F,
    (_O, Signal.PLACE_AGAIN): _P,
}

OUT_OF_SYNC_AFTER = timedelta(seconds=30)
STOP_GRACE = timedelta(seconds=10)
"""How long work that is told to stop may take before its machine kills it."""


def on(state: State, signal: Signal) -> State:
    """Return the state after `signal`; refuse what no rule allows. Errors: `CONFLICT`."""
    after = TRANSITIONS.get((state, signal))
    if after is None:
        raise Refusal("CONFLICT", f"A workload that is {state.value} cannot become otherwise by {signal.value}.")
    return after


def must_end_by(placed_at: datetime, time_limit_s: int | None) -> datetime | None:
    """A time limit counts from placement, image pull included (design decision 9)."""
    return None if time_limit_s is None else placed_at + timedelta(seconds=time_limit_s)


def sure_end(must_end_by: datetime | None) -> datetime | None:
    """Return when work is gone for sure: its time limit and its stop grace are over. None: it has no limit."""
    return None if must_end_by is None else must_end_by + STOP_GRACE


def when_its_machine_is_lost(
    policy: RestartPolicy, *, stop_asked: bool, must_end_by: datetime | None, now: datetime
) -> Signal:
    """Return what the removal of its machine does to a workload. What has to end anyway is not placed again."""
    over = must_end_by is not None and must_end_by <= now
    if policy is RestartPolicy.NEVER or stop_asked or over:
        return Signal.LOST
    return Signal.PLACE_AGAIN


def time_left_s(must_end_by: datetime | None, now: datetime) -> int | None:
    """Return how much of a time limit is left for its next machine, in whole seconds; None: it has no limit.

    While a workload waits to be placed again its limit stands still.
    """
    return None if must_end_by is None else max(1, math.ceil((must_end_by - now).total_seconds()))
