"""Refused acts worth knowing are audited (spec 10): who they were, and in whose audit it stands."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.domain.errors import Refusal
from corral.store import orgs as org_rows
from corral.store.transaction import Tx
from corral.usecases.context import User
from corral.usecases.identity import Caller, Place, identify

EVERY = timedelta(minutes=1)
KEYS_MAX = 10_000


class Denials:
    """How often the same denial is written down: once a minute for a person and a route, for ever would be too much.

    In memory; the next one that is written says how many were left out.
    """

    def __init__(self) -> None:
        self._written: OrderedDict[tuple[str, str], tuple[datetime, int]] = OrderedDict()
        self._lock = threading.Lock()

    def left_out(self, user_id: str, route: str, now: datetime) -> int | None:
        """Return how many were left out since the last one, or None: leave this one out too."""
        key = (user_id, route)
        with self._lock:
            at, count = self._written.get(key, (None, 0))
            if at is not None and now - at < EVERY:
                self._written[key] = (at, count + 1)
                return None
            self._written[key] = (now, 0)
            self._written.move_to_end(key)
            while len(self._written) > KEYS_MAX:
                self._written.popitem(last=False)
            return count


@dataclass(frozen=True)
class Denied:
    user: User
    org_id: str | None
    """None: the site's own audit."""


def worth_recording(tx: Tx, caller: Caller, place: Place) -> Denied | None:
    """Return who was denied; None when the credential has meanwhile died."""
    try:
        user = identify(tx, caller).user
    except Refusal:
        return None
    row = org_rows.with_role(tx, place.org, user.id) if place.org else None
    return Denied(user, row["id"] if row is not None else None)
