"""Webhooks: what they are told of, and when what was not taken is sent again (spec 10 "Events, audit, alerts").

Deliveries are at least once: the same one, sent again, has the same `webhook-id`. What is not taken within about a day
is given up. A webhook that answers 410, or has taken nothing for five days, is disabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.domain.errors import Refusal
from corral.domain.events import TYPES, Class, check_types

WEBHOOKS_MAX = 20
RULES_MAX = 50
TYPES_MAX = 50
WAITING_MAX = 10_000
"""Deliveries of one target that may wait; with one more its webhook is disabled."""
KEPT_FOR = timedelta(days=30)
"""How long a delivery that was taken, or given up, is shown."""
FAILING_FOR = timedelta(days=5)
RETRY_AFTER_MAX = timedelta(hours=1)
_BACKOFF = tuple(timedelta(seconds=s) for s in (5, 30, 120, 600, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 8 * 3600))
JITTER = 0.2
REFUSALS_IN_A_ROW = 10
BUSY = (429, 503)
"""Statuses that ask for patience; any other one refuses what was sent."""


def types(asked: Sequence[str]) -> tuple[str, ...]:
    """Return what events a webhook is told of: types, or beginnings of them such as `cluster.node.*`.

    None: it is told alerts only, by rules. Errors: `INVALID_REQUEST` for one that no event has.
    """
    if len(asked) > TYPES_MAX:
        raise Refusal("INVALID_REQUEST", f"types: name at most {TYPES_MAX}.", field="types")
    known = [name for name, (kind, _) in TYPES.items() if kind is not Class.AUDIT]
    check_types(asked, known, "types")
    return tuple(dict.fromkeys(asked))


@dataclass(frozen=True)
class Outcome:
    """How sending went. `status` None: no answer; `error` is what tenants may read of that."""

    status: int | None
    retry_after_s: float | None = None
    error: str = ""

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        return self.status == 410


TAKEN = Outcome(200)
"""What a mail or chat service took."""


def next_try(attempts: int, outcome: Outcome, now: datetime, chance: float) -> datetime | None:
    """Return when a delivery that was tried `attempts` times is sent again; None: done, or given up.

    `chance` (0 to 1) spreads what failed together. `Retry-After` counts with 429 and 503, up to an hour.
    """
    if outcome.taken or outcome.gone or attempts > len(_BACKOFF):
        return None
    wait = _BACKOFF[attempts - 1] * (1 + JITTER * (2 * chance - 1))
    if outcome.status in BUSY and outcome.retry_after_s is not None:
        wait = max(wait, min(timedelta(seconds=max(outcome.retry_after_s, 0.0)), RETRY_AFTER_MAX))
    return now + wait


def pause(failures: int, outcome: Outcome) -> timedelta:
    """Return how long a target that failed so often in a row is left alone, whatever waits for it.

    One that answers, and refuses, may refuse only some: the others do not wait for these, until it has refused
    many in a row. One that does not answer, or says that it is too busy, is not asked for anything else.
    """
    if outcome.status is not None and outcome.status not in BUSY:
        return timedelta(seconds=5) if failures >= REFUSALS_IN_A_ROW else timedelta(0)
    return min(_BACKOFF[min(failures, len(_BACKOFF)) - 1], timedelta(minutes=2)) if failures else timedelta(0)
