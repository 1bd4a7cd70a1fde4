"""What the site answers about machines, as frozen dataclasses. Sizes in MiB, times aware datetimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.client.decode import View

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuCounts(View):
    total: int
    healthy: int = 0
    allocated: int = 0
    free: int = 0
    models: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Cordon(View):
    reason: str
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Quarantine(View):
    """`kind`: clone | unknown_work."""

    kind: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Condition(View):
    kind: str
    message: str
    blocking: bool


@dataclass(frozen=True, kw_only=True)
class MachineUpdate(View):
    """An update that was asked for. `state`: asked | running | failed; `message`: what goes on, or why it failed."""

    release: str
    state: str
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Machine(View):
    """`closed` says why no new work lands on it ("" = it may); `reserved`: for whom it is kept now, and until when;
    `behind`: its agent is not the site's release."""

    id: str
    name: str
    state: str
    state_since: datetime
    gpus: GpuCounts
    last_seen: datetime | None = None
    connected: bool = False
    closed: str = ""
    reserved: str = ""
    cordon: Cordon | None = None
    quarantine: Quarantine | None = None
    conditions: list[Condition] = field(default_factory=list)
    pool: str = ""
    site: str = ""
    rack: str = ""
    fabric: str = ""
    labels: Json = field(default_factory=dict)
    release: str = ""
    behind: bool = False
    update: MachineUpdate | None = None
    hostname: str = ""
    address: str = ""
    vcpu: int = 0
    ram_mib: int = 0
    storage_mib: int = 0
    joined_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Fault(View):
    """A latched fault of a GPU. `evidence`: the kernel's line or the counter; `count`: how often it was said."""

    code: str
    meaning: str
    since: datetime
    last_at: datetime
    evidence: str = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Gpu(View):
    """`state`: ok | unreadable | missing | conflict; `workload` and `workspace` hold it (None: free).

    With one of `faults` it is fenced: never assigned until that is cleared.
    """

    uuid: str
    vendor: str
    model: str
    state: str
    slot: str = ""
    memory_mib: int = 0
    serial: str = ""
    detail: str = ""
    busy: str = ""
    workload: str | None = None
    workspace: str | None = None
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Running(View):
    name: str
    kind: str
    state: str
    workspace: str
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Disk(View):
    """A local disk that can be written. `os`: it holds the operating system; `recommended`: the one to propose."""

    mount: str
    device: str
    kind: str
    size_mib: int
    free_mib: int
    os: bool = False
    recommended: bool = False


@dataclass(frozen=True, kw_only=True)
class DataLocation(View):
    """`state`: making | ready | failed, `message` why; `copies`: drives kept there; `max_bytes` 0: no limit."""

    path: str
    mount: str
    state: str
    max_bytes: int = 0
    message: str = ""
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class DataLocationAnswer(View):
    """A machine's data location (None: none is chosen) and the disks it could lie on."""

    name: str
    dry_run: bool
    disks: list[Disk]
    data_location: DataLocation | None = None


@dataclass(frozen=True, kw_only=True)
class Window(View):
    """A reservation as a machine feels it. `whom`: short names of workspaces, or "nobody"."""

    id: str
    start: datetime
    end: datetime
    whom: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class MachineDetails(View):
    """`inventory` is what the machine says of itself, `disks` where its data location may lie; `reservations`: those
    that cover it and are not over."""

    machine: Machine
    gpus: list[Gpu]
    running: list[Running]
    inventory: Json = field(default_factory=dict)
    disks: list[Disk] = field(default_factory=list)
    data_location: DataLocation | None = None
    reservations: list[Window] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Affected(View):
    """Who and what an act on a machine touches."""

    name: str
    dry_run: bool
    running: list[Running]
    workspaces: list[str]
    workspaces_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Removal(Affected):
    """What removing a machine by force does; workloads as `workspace/name`.

    `stopped` is all that runs there: of it `placed_again` waits for another machine, `lost` ends. While `state` is
    down it may run until the machine is heard of again. `uninstall`: of one that is online, the line to run there.
    """

    state: str = ""
    stopped: list[str] = field(default_factory=list)
    placed_again: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    uninstall: str | None = None


@dataclass(frozen=True, kw_only=True)
class AllocatedMachine(View):
    """A machine of the workspace's pools; `status`: "available", or why nothing can be created on it.

    `reserved`: the reservation to come that only work with a time limit may come before ("" = none).
    """

    name: str
    cluster: str
    status: str
    state: str
    pool: str = ""
    gpu_models: list[str] = field(default_factory=list)
    gpus_available: int = 0
    gpus_total: int = 0
    vcpu: int = 0
    ram_mib: int = 0
    storage_mib: int = 0
    reserved: str = ""
