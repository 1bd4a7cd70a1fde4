"""Whose delivery is begun next (spec 10, "Events, audit, alerts"): who is slow, or has much, holds up nobody else.

Of the organisations for which something is due, that with the fewest on their way comes first; of several that whose
turn was longest ago. Nobody takes the last places but who has none: a newcomer finds one, however many are slow.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

AT_ONCE = 64
OF_AN_ORG = 8
OF_A_TARGET = 4
SERVICES_AT_ONCE = 4
"""Mail and chat services: each is told by a process."""
SERVICES_OF_AN_ORG = 2


@dataclass(frozen=True)
class Waiting:
    """A target for which something is due, and since when that is so. A service gets all in one go."""

    org: str
    target: str
    by_webhook: bool
    since: datetime


@dataclass(frozen=True)
class UnderWay:
    """A delivery, or a service's messages, on its way."""

    org: str
    target: str
    by_webhook: bool


class Turns:
    """One look at what is due: ask for `next`, then say whether something `began` or nothing was left (`spent`).

    `failing`: targets that get one at a time until they take something. `last`: when an organisation had its turn
    last, as a number that grows.
    """

    def __init__(
        self,
        waiting: Iterable[Waiting],
        under_way: Iterable[UnderWay],
        failing: Collection[str] = (),
        last: Mapping[str, int] | None = None,
    ) -> None:
        self._failing = frozenset(failing)
        self._jobs, self._services = 0, 0
        self._of_org: Counter[str] = Counter()
        self._services_of_org: Counter[str] = Counter()
        self._of_target: Counter[str] = Counter()
        self.last: dict[str, int] = dict(last or {})
        for one in under_way:
            self._count(one.org, one.target, one.by_webhook)
        self._open: dict[str, dict[str, Waiting]] = {}
        for target in waiting:
            self._open.setdefault(target.org, {})[target.target] = target
        self._heap: list[tuple[int, int, datetime, str]] = []
        for org in self._open:
            self._line_up(org)

    def room(self, target: Waiting) -> int:
        """Return how many more may be on their way to a target."""
        most = OF_A_TARGET if target.by_webhook and target.target not in self._failing else 1
        return max(most - self._of_target[target.target], 0)

    def next(self) -> Waiting | None:
        """Return the target to which something may begin now."""
        while self._heap and self._jobs < AT_ONCE:
            *_, org = heapq.heappop(self._heap)
            if self._of_org[org] < _share(OF_AN_ORG, (AT_ONCE - self._jobs) // 4):
                free = [target for target in self._open[org].values() if self._may_begin(target)]
                if free:
                    return min(free, key=lambda one: (self._of_target[one.target], one.since, one.target))
        return None

    def began(self, target: Waiting) -> None:
        """Something to it is on its way now."""
        self.last[target.org] = max(self.last.values(), default=0) + 1
        self._count(target.org, target.target, target.by_webhook)
        self._line_up(target.org)

    def spent(self, target: Waiting) -> None:
        """Nothing is left for it now."""
        del self._open[target.org][target.target]
        if self._open[target.org]:
            self._line_up(target.org)

    def _may_begin(self, target: Waiting) -> bool:
        if not target.by_webhook:
            share = _share(SERVICES_OF_AN_ORG, SERVICES_AT_ONCE - self._services)
            if self._services >= SERVICES_AT_ONCE or self._services_of_org[target.org] >= share:
                return False
        return self.room(target) > 0

    def _line_up(self, org: str) -> None:
        oldest = min(target.since for target in self._open[org].values())
        heapq.heappush(self._heap, (self._of_org[org], self.last.get(org, 0), oldest, org))

    def _count(self, org: str, target: str, by_webhook: bool) -> None:
        self._jobs += 1
        self._services += not by_webhook
        self._services_of_org[org] += not by_webhook
        self._of_org[org] += 1
        self._of_target[target] += 1


def _share(most: int, of_what_is_free: int) -> int:
    return max(1, min(most, of_what_is_free))
