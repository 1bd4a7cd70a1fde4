"""Machines as answers show them: to admins, and to a workspace's members (spec 10; spec 20, "The page")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from corral.domain.machines import MachineState
from corral.domain.reservations import Window
from corral.domain.updates import State as UpdateState
from corral.domain.updates import is_behind
from corral.server.agents import Hub
from corral.server.artefact import ArtefactStore
from corral.server.routes.data_location import DataLocationView, DiskView
from corral.server.routes.gpu_faults import FaultView
from corral.store.transaction import Row
from corral.usecases import machines as use


class GpuCounts(BaseModel):
    """`healthy`: without a fault; `allocated`: healthy and held by a workload; `free`: can be given now."""

    total: int
    healthy: int
    allocated: int
    free: int
    models: list[str]


class Cordon(BaseModel):
    reason: str
    by: str
    at: datetime


class QuarantineView(BaseModel):
    kind: str
    reason: str


class ConditionView(BaseModel):
    kind: str
    message: str
    blocking: bool


class UpdateView(BaseModel):
    """`release`: the one that was asked for at `since`; `message`: what the machine works on, or why it failed."""

    release: str
    state: UpdateState
    message: str
    since: datetime


class MachineView(BaseModel):
    """`closed` says why no new work lands on the machine ("" = it may). `reserved`: for whom it is kept now, and until
    when ("" = for nobody in particular). `behind`: its agent is of another release."""

    id: str
    name: str
    state: MachineState
    state_since: datetime
    last_seen: datetime | None
    connected: bool
    closed: str
    reserved: str
    cordon: Cordon | None
    quarantine: QuarantineView | None
    conditions: list[ConditionView]
    pool: str
    site: str
    rack: str
    fabric: str
    labels: dict[str, str]
    release: str
    behind: bool
    update: UpdateView | None
    hostname: str
    address: str
    vcpu: int
    ram_mib: int
    storage_mib: int
    gpus: GpuCounts
    joined_at: datetime


class GpuView(BaseModel):
    """`workload` and `workspace` hold it; null = nobody does. With one of `faults` it is fenced: never assigned."""

    uuid: str
    vendor: str
    slot: str
    model: str
    memory_mib: int
    serial: str
    state: str
    detail: str
    busy: str
    workload: str | None
    workspace: str | None
    faults: list[FaultView]

    @staticmethod
    def of(row: Row, faults: Sequence[Row]) -> GpuView:
        told = {key: row[key] for key in GpuView.model_fields if key != "faults"}
        return GpuView(**told, faults=[FaultView.of(fault) for fault in faults])


class RunningView(BaseModel):
    name: str
    kind: str
    state: str
    workspace: str
    gpus: int


class SessionView(BaseModel):
    epoch: int
    boot_id: str
    pid: int
    opened_at: datetime


class WindowView(BaseModel):
    """A reservation as a machine feels it. `whom`: short names of workspaces, or "nobody"."""

    id: str
    start: datetime
    end: datetime
    whom: str
    reason: str

    @staticmethod
    def of(window: Window) -> WindowView:
        return WindowView(**{name: getattr(window, name) for name in WindowView.model_fields})


class MachineDetails(BaseModel):
    """`inventory` is what the machine says of itself, `disks` where its data location may lie; `reservations`: those
    that cover it and are not over."""

    machine: MachineView
    inventory: dict[str, Any]
    gpus: list[GpuView]
    running: list[RunningView]
    sessions: list[SessionView]
    reservations: list[WindowView]
    disks: list[DiskView]
    data_location: DataLocationView | None


class Affected(BaseModel):
    """What runs on the machine, and the first workspaces that may use it; `workspaces_left_out` counts the rest."""

    name: str
    dry_run: bool
    running: list[RunningView]
    workspaces: list[str]
    workspaces_left_out: int


class Machines(BaseModel):
    items: list[MachineView]
    next_page_token: str | None


class AllocatedMachine(BaseModel):
    """`status`: "available", or the one reason why nothing can be created here, such as "Sold Out". `reserved`: the
    reservation to come that only work with a time limit may come before ("" = none)."""

    name: str
    cluster: str
    pool: str
    gpu_models: list[str]
    gpus_available: int
    gpus_total: int
    vcpu: int
    ram_mib: int
    storage_mib: int
    state: MachineState
    status: str
    reserved: str


class AllocatedMachines(BaseModel):
    """`contact`: whom to ask for more."""

    items: list[AllocatedMachine]
    next_page_token: str | None
    contact: str


def affected(told: use.Affected, *, dry_run: bool) -> Affected:
    """Return what an act touched, or (`dry_run`) would touch."""
    running = [RunningView(**vars(work)) for work in told.running]
    return Affected(
        name=told.name,
        dry_run=dry_run,
        running=running,
        workspaces=list(told.workspaces.named),
        workspaces_left_out=told.workspaces.left_out,
    )


def allocated(offered: use.Offered) -> AllocatedMachine:
    row, counts = offered.row, offered.gpus.counts
    return AllocatedMachine(
        name=row["name"],
        cluster=row["cluster"],
        pool=row["pool"],
        gpu_models=list(offered.gpus.models),
        gpus_available=counts.free,
        gpus_total=counts.total,
        vcpu=row["vcpu"],
        ram_mib=row["ram_mib"],
        storage_mib=row["storage_mib"],
        state=row["state"],
        status=offered.status,
        reserved=offered.reserved,
    )


_AS_THEY_ARE = (
    "id",
    "name",
    "state",
    "state_since",
    "last_seen",
    "conditions",
    "pool",
    "site",
    "rack",
    "fabric",
    "labels",
    "release",
    "hostname",
    "address",
    "vcpu",
    "ram_mib",
    "storage_mib",
    "joined_at",
)


def view(machine: use.Machine, request: Request) -> MachineView:
    return MachineView(**fields_of(machine, hub_of(request), served(request)))


def served(request: Request) -> str:
    """Return the release of the agent that the site serves."""
    artefact: ArtefactStore = request.app.state.artefact
    return artefact.release


def _update(row: Row) -> dict[str, Any] | None:
    if not row["update_state"]:
        return None
    return {
        "release": row["update_release"],
        "state": row["update_state"],
        "message": row["update_message"],
        "since": row["update_since"],
    }


def hub_of(request: Request) -> Hub | None:
    hub: Hub | None = getattr(request.app.state, "hub", None)  # there while the application runs
    return hub


def fields_of(machine: use.Machine, hub: Hub | None, served: str) -> dict[str, Any]:
    """Return the fields of `MachineView`, ready to be encoded: lists do without the model (half their time)."""
    row, summary = machine.row, machine.gpus
    cordon = quarantine = None
    if row["cordon_reason"] is not None:
        cordon = {"reason": row["cordon_reason"], "by": row["cordoned_by"], "at": row["cordoned_at"]}
    if row["quarantine"] is not None:
        quarantine = {"kind": row["quarantine"], "reason": row["quarantine_reason"] or ""}
    counts = summary.counts
    return {
        **{key: row[key] for key in _AS_THEY_ARE},
        "connected": hub is not None and hub.connected(row["id"]),
        "closed": machine.closed,
        "reserved": machine.reserved,
        "cordon": cordon,
        "quarantine": quarantine,
        "behind": is_behind(row["release"], served),
        "update": _update(row),
        "gpus": {
            "total": counts.total,
            "healthy": counts.healthy,
            "allocated": counts.held,
            "free": counts.free,
            "models": list(summary.models),
        },
    }
