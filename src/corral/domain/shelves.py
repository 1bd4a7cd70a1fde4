"""Where machines stand in a fleet's index, so that a best fit is found without looking at each (`domain/fleet.py`).

A cell has a level for each number of free GPUs; a level has shelves. On the open shelf stand the machines that no
reservation closes. The others stand, by when they close, on the closing shelf; and for each workspace that one of
their reservations is for, on a shelf of its own, by when they close for that workspace.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from heapq import heappop, heappush
from operator import itemgetter

from corral.domain.reservations import Window

NEVER = 1 << 62
"""When a machine closes that no reservation closes, and when work without a time limit ends."""
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=timezone.utc), timedelta(microseconds=1)

Key = tuple[int, int, int, int, int]
"""Free vCPU and RAM (MiB), when it closes (microseconds since 1970), free storage (MiB), the number of the
machine's kind."""

Where = tuple[str, bool]
"""For which workspace ("": for all), and whether the machines there never close for it."""
OPEN: Where = ("", True)
CLOSING: Where = ("", False)


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def places(windows: Sequence[Window]) -> tuple[tuple[Where, int], ...]:
    """Return on which shelves a machine with these windows, none of them over, stands, and when it closes there."""
    if not windows:
        return ((OPEN, NEVER),)
    soonest = sorted(((micros(window.start), window.workspaces) for window in windows), key=itemgetter(0))
    closes, left = soonest[0]
    found = [(CLOSING, closes)]
    for start, workspaces in soonest[1:]:  # whom the first to start are not for, for those it closes no later
        if start > closes:
            found += [((workspace, False), start) for workspace in sorted(left - workspaces)]
        left &= workspaces
        if not left:
            break
    return (*found, *(((workspace, True), NEVER) for workspace in sorted(left)))


def looked_at(workspace: str, until: int) -> tuple[Where, ...]:
    """Return the shelves beside the open one where work of a workspace that ends at `until` may find a place."""
    if until == NEVER:
        return ((workspace, True),)
    return (CLOSING, (workspace, False), (workspace, True))


class Shape:
    """Machines that have the same free; the first by name is at hand. Left ones are dropped from the heap lazily."""

    __slots__ = ("heap", "inside", "members")

    def __init__(self) -> None:
        self.heap: list[str] = []
        self.inside: set[str] = set()
        self.members: set[str] = set()

    def add(self, name: str) -> None:
        self.members.add(name)
        if name not in self.inside:
            self.inside.add(name)
            heappush(self.heap, name)

    def remove(self, name: str) -> None:
        self.members.remove(name)
        if len(self.heap) > 2 * len(self.members) + 16:  # most of those in it have left
            self.heap, self.inside = sorted(self.members), set(self.members)

    def first(self, but: set[str]) -> str | None:
        heap, members = self.heap, self.members
        while heap[0] not in members:
            self.inside.remove(heappop(heap))
        if heap[0] not in but:
            return heap[0]
        return min(members - but, default=None)


class Shelf:
    """Machines in the order in which they are taken: by `Key`. One of a level's others leaves it when it is empty."""

    __slots__ = ("beside", "order", "shapes", "where")

    def __init__(self, beside: dict[Where, Shelf] | None = None, where: Where = OPEN) -> None:
        self.order: list[Key] = []
        self.shapes: dict[Key, Shape] = {}
        self.beside, self.where = beside, where

    def add(self, key: Key, name: str) -> None:
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape()
            insort(self.order, key)
        shape.add(name)

    def remove(self, key: Key, name: str) -> None:
        shape = self.shapes[key]
        shape.remove(name)
        if not shape.members:
            del self.shapes[key]
            del self.order[bisect_left(self.order, key)]
            if self.beside is not None and not self.order:
                del self.beside[self.where]


class Level:
    """The machines of a cell with one number of free GPUs."""

    __slots__ = ("open", "others")

    def __init__(self) -> None:
        self.open = Shelf()
        self.others: dict[Where, Shelf] = {}

    def shelf(self, where: Where) -> Shelf:
        if where is OPEN:  # `places` gives this very one: it is asked for twice at each placement
            return self.open
        shelf = self.others.get(where)
        if shelf is None:
            shelf = self.others[where] = Shelf(self.others, where)
        return shelf


class Cell:
    """The machines of one pool that have one GPU model; `machines` counts those too that take no work now."""

    __slots__ = ("levels", "machines")

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self.machines = 0
