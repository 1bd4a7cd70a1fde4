"""What the site answers about leaving clusters, requests for one, limits and break-glass."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from corral.client.decode import View


@dataclass(frozen=True, kw_only=True)
class StillRunning(View):
    workspace: str
    name: str
    kind: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Leaving(View):
    """What leaving a cluster comes to: machines stay enrolled, unused join tokens are revoked.

    While `workspaces` have access, it cannot be left. Lists name the first few.
    """

    slug: str
    hosted: bool
    dry_run: bool
    machines: int
    tokens: int
    machine_names: list[str] = field(default_factory=list)
    running: list[StillRunning] = field(default_factory=list)
    workspaces: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ClusterRequest(View):
    """`state`: open | made | declined | withdrawn; `answer`: why it was declined; `cluster`: what was made for it."""

    id: str
    org: str
    name: str
    state: str
    note: str = ""
    created_by: str = ""
    created_at: datetime | None = None
    answered_at: datetime | None = None
    answer: str = ""
    cluster: str | None = None


@dataclass(frozen=True, kw_only=True)
class DedicatedCluster(View):
    """A dedicated cluster as the operator sees it. `left_at` None: its organisation uses it."""

    id: str
    org: str
    slug: str
    name: str
    machines: int = 0
    up: int = 0
    down: int = 0
    cordoned: int = 0
    gpus: int = 0
    created_at: datetime | None = None
    left_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class MachineLimit(View):
    """An organisation's limit on the hosted cluster: its own (`machines` None: none), and what holds."""

    in_force: int
    enrolled: int
    tokens: int
    machines: int | None = None


@dataclass(frozen=True, kw_only=True)
class Look(View):
    """One time that the operator may, or might, read the organisation's data (break-glass)."""

    id: str
    operator: str
    reason: str
    live: bool
    expires_at: datetime
    created_at: datetime | None = None
    ended_at: datetime | None = None
