"""What the model of `test_model` knows: what was done, and what follows from it by the spec's words alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from corral.domain.allocations import Report as AllocationReport
from corral.domain.sessions import Opened

QUOTA = 5
VCPUS = 6
"""The workspace's quota of vCPU: each workload takes one."""
GPUS = 2
POOLS = ("a", "b")
LIMIT_S = 1800
GRACE = timedelta(seconds=10)
ORGS = ("acme", "rival")
ADMIN = {"acme": "admin", "rival": "rival"}
MEMBER = {"acme": "member", "rival": "rival"}


@dataclass
class Card:
    uuid: str
    slot: str
    faulty: bool = False
    line: int = 0
    """The number of the newest kernel line about it."""


@dataclass
class Box:
    """A machine as it is, and as its agent knows it."""

    org: str
    name: str
    key: str
    token: str
    cards: list[Card]
    pool: str
    session: Opened | None = None
    instances: int = 0
    up: bool = False
    cordoned: bool = False
    removed: bool = False
    kernel: list[tuple[int, str]] = field(default_factory=list)
    runs: dict[str, AllocationReport] = field(default_factory=dict)


@dataclass
class Booking:
    """A reservation."""

    id: str
    org: str
    pool: str | None
    names: frozenset[str]
    start: datetime
    end: datetime
    workspaces: frozenset[str]

    def covers(self, box: Box) -> bool:
        return self.org == box.org and (box.name in self.names or (self.pool is not None and self.pool == box.pool))

    def refuses(self, workspace: str, now: datetime, sure_end: datetime | None) -> bool:
        if self.end <= now or workspace in self.workspaces:
            return False
        return self.start <= now or sure_end is None or sure_end > self.start


@dataclass
class Work:
    org: str
    name: str
    box: str
    limit_s: int | None
    again: bool = False
    """It is placed again when its machine is lost."""
    told_to_stop: bool = False


class Model:
    """What was done so far, and what follows from it."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.bookings: list[Booking] = []
        self.granted = {org: {"a", "b"} for org in ORGS}
        self.known: dict[str, Work] = {}
        """By allocation: live ones."""

    def refuses(self, box: Box, org: str, now: datetime, limit_s: int | None) -> str:
        """Why nothing of the organisation's workspace may begin on a machine now ("" = it may): line 3."""
        end = None if limit_s is None else now + timedelta(seconds=limit_s) + GRACE
        if box.org != org:
            return "another tenant's"
        if box.removed or not box.up or box.session is None:
            return "not up"
        if box.cordoned:
            return "cordoned"
        if box.pool not in self.granted[org]:
            return "out of the workspace's pools"
        if any(one.covers(box) and one.refuses("research", now, end) for one in self.bookings):
            return "reserved"
        return ""

    def free(self, box: Box, held: set[str]) -> int:
        return sum(1 for card in box.cards if not card.faulty and card.uuid not in held)
