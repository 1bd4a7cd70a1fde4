"""What the site answers about compute clusters. Sizes in GiB, times aware datetimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from corral.client.decode import View


@dataclass(frozen=True, kw_only=True)
class Connection(View):
    """`ssh`: ready | no key | not active | machine unreachable; `why` says what to do when it is not ready."""

    name: str
    workload_id: str
    ssh: str
    why: str = ""
    machine: str | None = None
    user: str = "root"
    host_alias: str = ""
    host_key: str = ""
    fingerprints: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ComputeInfo(View):
    """A compute cluster. `state`: provisioning | active | out_of_sync | terminated | failed.

    `step`, while provisioning: waiting | placed | pulling_image | storage | starting | verifying; `reason` says why
    it waits, failed or is out of sync, `wanted` and `seen` what differs. `ssh`: ready | no key | not active |
    machine unreachable. Amounts are None while it waits and they were not asked for.
    """

    id: str
    name: str
    state: str
    state_since: datetime
    step: str = ""
    step_since: datetime | None = None
    reason: str = ""
    wanted: str = ""
    seen: str = ""
    cluster: str = ""
    machine: str | None = None
    gpu_model: str | None = None
    gpus: int = 0
    gpu_uuids: list[str] = field(default_factory=list)
    vcpu: int | None = None
    ram_gib: float | None = None
    storage_gib: float | None = None
    storage_quota: str | None = None
    network_mbps: int | None = None
    ssh: str = ""
    image: str = ""
    created_by: str = ""
    created_at: datetime | None = None
    placed_at: datetime | None = None
    time_limit_seconds: int | None = None
    must_end_by: datetime | None = None
    drives: list[str] = field(default_factory=list)
    restart_policy: str = "never"
    stop_asked_at: datetime | None = None
    stop_reason: str | None = None
    ended_at: datetime | None = None
    queued: bool = False
    oom_kills: int = 0
    restarts: int = 0
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Change(View):
    """One entry of a compute cluster's history."""

    at: datetime
    type: str
    by: str
    state: str | None = None
    step: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class ComputeDetails(ComputeInfo):
    """A compute cluster with its history, oldest first."""

    history: list[Change] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Termination(View):
    """`stops`: what ends with it, in words."""

    compute_cluster: ComputeInfo
    stops: list[str]
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class AttachedKey(View):
    id: str
    name: str
    fingerprint: str
    user: str


@dataclass(frozen=True, kw_only=True)
class Log(View):
    """`kind`: provisioning | container. Lines as they were written: not fit for a terminal as they are."""

    kind: str
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class MachineAnswer(View):
    machine: str
    takes: bool
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation(View):
    """`machine`: where an ask would go now (None: nowhere); `quota`: why the quota holds it back."""

    machines: list[MachineAnswer]
    machine: str | None = None
    quota: str | None = None
