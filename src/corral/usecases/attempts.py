"""How often somebody may try to log in: per login and address, in memory (rules in `domain/users.py`)."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from datetime import datetime, timedelta

from corral.domain import users as rules
from corral.domain.errors import Refusal

KEYS_MAX = 20_000


class Attempts:
    """Failed tries and when they were. A try is charged before it is judged, so that many at once count too."""

    def __init__(self) -> None:
        self._tries: OrderedDict[tuple[str, str], list[datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def charge(self, login: str, address: str, now: datetime) -> None:
        """Count a try. `login` "" = a link, which only the address limits. Errors: `RATE_LIMITED`."""
        with self._lock:
            wait = max(self._wait(key, limit, now) for key, limit in _limits(login, address))
            if wait > 0:
                seconds = math.ceil(wait)
                raise Refusal(
                    "RATE_LIMITED", f"Too many tries to log in. Try again in {seconds} s.", retry_after_s=seconds
                )
            for key, _ in _limits(login, address):
                self._tries.setdefault(key, []).append(now)
                self._tries.move_to_end(key)
            while len(self._tries) > KEYS_MAX:
                self._tries.popitem(last=False)

    def forgive(self, login: str, address: str) -> None:
        """Take back a try that succeeded, and earlier failures of this login from this address."""
        with self._lock:
            for key, _ in _limits(login, address):
                times = self._tries.get(key, [])
                if times:
                    times.pop()
                if not times or (login and key == (login, address)):
                    self._tries.pop(key, None)

    def _wait(self, key: tuple[str, str], limit: rules.Limit, now: datetime) -> float:
        """Return how many seconds until `key` may try again (0: now), dropping what is too old to count."""
        times = self._tries.get(key, [])
        since = now - timedelta(seconds=limit.seconds)
        times[:] = [moment for moment in times if moment > since]
        if len(times) < limit.tries:
            return 0.0
        return (times[-limit.tries] - since).total_seconds()


def _limits(login: str, address: str) -> list[tuple[tuple[str, str], rules.Limit]]:
    limits = [(("", address), rules.TRIES_ADDRESS)]
    if login:
        limits += [((login, address), rules.TRIES_HERE), ((login, ""), rules.TRIES_LOGIN)]
    return limits
