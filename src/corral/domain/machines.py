"""What state a machine is in, and whether new work may land on it (spec 10, "Machine states" and "Cordon").

Liveness (Idle, Up, Down) is kept; whether a machine takes new work is derived from facts,
never kept (design decision 4).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from corral.domain.errors import Refusal
from corral.domain.events import Subject
from corral.domain.ids import HIDDEN, shown
from corral.domain.inventory import GpuCounts

DOWN_AFTER = timedelta(seconds=60)
DEFAULT_CORDON_REASON = "maintenance"


class MachineState(str, Enum):
    IDLE = "idle"  # registered, has not reported yet
    UP = "up"
    DOWN = "down"


class Quarantine(str, Enum):
    """Why a machine takes no new work until an admin decides."""

    CLONE = "clone"  # two copies of its state folder report
    UNKNOWN_WORK = "unknown_work"  # it runs work that this site does not know


@dataclass(frozen=True)
class MachineRef:
    """Which machine: what use cases hand to one another."""

    id: str
    org_id: str
    cluster_id: str
    name: str

    @property
    def subject(self) -> Subject:
        return Subject(org=self.org_id, cluster=self.cluster_id, machine=self.id)


def state_after(
    was: MachineState, last_report: datetime | None, listening_since: datetime, now: datetime
) -> MachineState:
    """Derive the state from what was heard.

    Silence counts only from `listening_since`: an outage of the control plane must not make
    a healthy fleet look dead. Only a report ends Down, and only one heard since then.
    """
    if last_report is None:
        return MachineState.IDLE
    if was is MachineState.DOWN and last_report <= listening_since:
        return MachineState.DOWN
    silent = now - max(last_report, listening_since)
    return MachineState.UP if silent < DOWN_AFTER else MachineState.DOWN


@dataclass(frozen=True)
class Standing:
    """The facts that decide whether a machine takes new work."""

    state: MachineState
    cordon_reason: str | None
    quarantine: str | None
    pressure: str


def closed_because(standing: Standing) -> str:
    """Return why no new work lands on the machine ("" = it may); the words people read."""
    if standing.state is MachineState.IDLE:
        return "has not reported yet"
    if standing.state is MachineState.DOWN:
        return "down"
    if standing.cordon_reason is not None:
        return f"cordoned: {standing.cordon_reason}"
    if standing.quarantine == Quarantine.CLONE.value:
        return "quarantined: two copies of it report"
    if standing.quarantine is not None:
        return "quarantined: it runs work that this site does not know"
    return standing.pressure


def status_text(closed: str, gpus: GpuCounts, quota_reached: bool) -> str:
    """Return the one thing a developer reads beside a machine ("available" = something can be created).

    `closed` is `closed_because`; `quota_reached`: by what could be created on it. A machine without GPUs is never
    Sold Out.
    """
    if closed:
        return closed
    if gpus.total and not gpus.healthy:
        return "all GPUs faulty"
    if gpus.total and not gpus.free:
        return "Sold Out" if gpus.held == gpus.healthy else "GPUs busy: held by processes outside Corral"
    if quota_reached:
        return "quota reached"
    return "available"


def cordon_reason(text: str | None) -> str:
    """Return the reason to show, trimmed; `maintenance` when none is given. Errors: `INVALID_REQUEST`."""
    reason = (text or "").strip() or DEFAULT_CORDON_REASON
    if len(reason) > 200 or any(unicodedata.category(c) in HIDDEN for c in reason):
        raise Refusal(
            "INVALID_REQUEST", f"{shown(reason)} cannot be a reason: use 1 to 200 printable characters.", field="reason"
        )
    return reason
