"""How often somebody may try to log in: per login and address, in memory (rules in `domain/users.py`)."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from corral.domain import users as rules
from corral.domain.errors import Refusal

KEYS_MAX = 20_000
KEPT_MAX = 200
"""Tries kept for a key: more than any limit asks for."""


class Attempts:
    """Failed tries and when they were. A try is charged before it is judged, so that many at once count too."""

    def __init__(self) -> None:
        self._tries: OrderedDict[tuple[str, str], list[datetime]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """(login, address) of those who logged in from there."""
        self._lock = threading.Lock()

    def charge(self, login: str, address: str, now: datetime) -> None:
        """Count a try. `login` "" = a link, which only the address limits. Errors: `RATE_LIMITED`."""
        with self._lock:
            wait = max(self._wait(key, limit, now) for key, limit in self._limits(login, address, now))
            if wait > 0:
                seconds = math.ceil(wait)
                raise Refusal(
                    "RATE_LIMITED", f"Too many tries to log in. Try again in {seconds} s.", retry_after_s=seconds
                )
            for key in _keys(login, address):
                self._tries.setdefault(key, []).append(now)
                self._tries.move_to_end(key)
            _bound(self._tries)

    def forgive(self, login: str, address: str) -> None:
        """Take back a try that succeeded, and earlier failures of this login from this address."""
        with self._lock:
            if login:
                self._known[login, address] = None
                self._known.move_to_end((login, address))
                _bound(self._known)
            for key in _keys(login, address):
                times = self._tries.get(key, [])
                if times:
                    times.pop()
                if not times or (login and key == (login, address)):
                    self._tries.pop(key, None)

    def _limits(self, login: str, address: str, now: datetime) -> Iterator[tuple[tuple[str, str], rules.Limit]]:
        yield ("", address), rules.TRIES_ADDRESS
        if not login:
            return
        guessed_at = self._wait((login, ""), rules.TRIES_LOGIN, now) > 0
        slowed = guessed_at and (login, address) not in self._known
        yield (login, address), rules.TRIES_SLOWED if slowed else rules.TRIES_HERE

    def _wait(self, key: tuple[str, str], limit: rules.Limit, now: datetime) -> float:
        """Return how many seconds until `key` may try again (0: now), dropping what is too old to count."""
        times = self._tries.get(key, [])
        since = now - timedelta(seconds=limit.seconds)
        times[:] = [moment for moment in times if moment > since][-KEPT_MAX:]
        if len(times) < limit.tries:
            return 0.0
        return (times[-limit.tries] - since).total_seconds()


def _keys(login: str, address: str) -> list[tuple[str, str]]:
    """Return what a try counts for: its address and, for a login, that login from there and from everywhere."""
    return [("", address), (login, address), (login, "")] if login else [("", address)]


def _bound(kept: OrderedDict[tuple[str, str], Any]) -> None:
    """Forget the longest unseen."""
    while len(kept) > KEYS_MAX:
        kept.popitem(last=False)
