"""A workload's hold on one machine: what should run, and what the machine says runs (design decision 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from corral.domain.resources import Resources


class Seen(str, Enum):
    """Where a machine says an allocation stands. The protocol's words."""

    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    RESTARTING = "restarting"


@dataclass(frozen=True)
class Report:
    """What a machine says of one allocation; the newest wins."""

    id: str
    generation: int
    state: Seen
    step: str = ""
    message: str = ""
    gpus: Sequence[str] = ()
    host_key: str = ""
    oom_kills: int = 0
    exit_code: int | None = None
    restarts: int = 0
    log: Sequence[tuple[int, str]] = ()
    """Provisioning log lines: (number from 1, text)."""
    log_tail: str = ""


@dataclass(frozen=True)
class Desired:
    """What one allocation should be. `stop` is explicit: an allocation is never stopped for being left out."""

    id: str
    generation: int
    stop: bool
    kind: str
    org: str
    workspace: str
    workload: str
    name: str
    image: str
    gpus: Sequence[str]
    resources: Resources
    authorized_keys: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    seconds_left: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What the machine is told after its report."""

    log_seen: Mapping[str, int] = field(default_factory=dict)
    """Per allocation: the highest provisioning log line that is stored."""
    describe: Sequence[str] = ()
    """Allocations this site does not know."""
    forget: Sequence[str] = ()
    """Allocations whose end is stored."""
