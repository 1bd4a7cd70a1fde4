"""How many of something a person may have at once (open streams, questions): counted in memory, from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from corral.domain.errors import Refusal


class Places:
    """At most `most` of `what` (in the plural) for each person."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._taken: Counter[str] = Counter()
        self._lock = Lock()

    def take(self, user_id: str) -> None:
        """Take a place; whoever takes one gives it back. Errors: `RATE_LIMITED`."""
        with self._lock:
            if self._taken[user_id] >= self._most:
                raise Refusal(
                    "RATE_LIMITED",
                    f"You have {self._most} {self._what} at once. Wait until one has ended, or end some.",
                    retry_after_s=5,
                )
            self._taken[user_id] += 1

    def give(self, user_id: str) -> None:
        """Give one back."""
        with self._lock:
            self._taken[user_id] -= 1
            if not self._taken[user_id]:
                del self._taken[user_id]

    @contextmanager
    def held(self, user_id: str) -> Iterator[None]:
        """Hold a place for a while. Errors: as of `take`."""
        self.take(user_id)
        try:
            yield
        finally:
            self.give(user_id)
