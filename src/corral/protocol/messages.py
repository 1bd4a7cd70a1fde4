"""The messages of an agent's session (spec 40, "Joining", "Reporting", "Tunnels").

One WebSocket a machine carries JSON text frames `{"type": ..., "body": {...}}`. The
wire is additive: a reader ignores fields it does not know, a writer never changes what
a field means. Sizes are MiB, durations seconds; no message carries a wall clock time,
because the server's clock is the only clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from corral.protocol.data_location import DataLocation, DataLocationSeen
from corral.protocol.gpu_faults import ClearFault, FaultCleared, GpuHealth, KernelLine
from corral.protocol.updates import Update, UpdateReport

PROTOCOL_VERSION = 1
"""History: 1 = the first release."""

CLOSE_REMOVED = 4410
"""WebSocket close code after `Removed`: the machine's credential is gone for ever (HTTP 410)."""
CLOSE_SUPERSEDED = 4409
"""WebSocket close code: another session of this machine said hello later."""
CLOSE_UNAUTHORIZED = 4401
"""WebSocket close code: the credential is not known; work goes on, the agent retries slowly."""
CLOSE_BAD_FRAME = 4400
"""WebSocket close code: a frame was not what the protocol says, or came too often; the reason says which."""
CLOSE_TOO_OLD = 4426
"""WebSocket close code: the agent's protocol is too old; work goes on, the agent has to be updated."""


class GpuState(str, Enum):
    OK = "ok"
    UNREADABLE = "unreadable"  # the driver answers for it, but not with what is needed
    MISSING = "missing"  # it was seen on this machine before and is not there now
    CONFLICT = "conflict"  # two devices claim its UUID


@dataclass(frozen=True)
class Gpu:
    """One GPU of a machine. Identity is vendor + uuid; `slot` (PCI bus id) and serial are attributes."""

    vendor: str
    uuid: str
    slot: str = ""
    model: str = ""
    memory_mib: int = 0
    serial: str = ""
    minor: int = -1
    state: GpuState = GpuState.OK
    detail: str = ""
    """Why it is not ok, for people."""
    busy: str = ""
    """Who holds its memory though no container of Corral's uses it ("" = nobody); such a GPU is not assignable."""


@dataclass(frozen=True)
class Disk:
    mount: str
    device: str
    kind: str
    """File system, e.g. ext4, xfs."""
    size_mib: int
    free_mib: int
    os: bool = False
    """Holds the operating system."""


@dataclass(frozen=True)
class Inventory:
    """What a machine is. Sent when it changed; between, `Report.inventory_digest` stands for it."""

    hostname: str
    arch: str = ""
    os: str = ""
    kernel: str = ""
    cpu_model: str = ""
    vcpus: int = 0
    memory_mib: int = 0
    storage_mib: int = 0
    """Capacity of the runtime's file system less the agent's reserve."""
    network_mbps: int = 0
    """Fastest physical link that is up; 0 = not known."""
    addresses: tuple[str, ...] = ()
    runtime: str = ""
    """e.g. "podman 4.3.1", "sim"."""
    storage_quota: str = "none"
    """How storage limits are enforced: "loop" (a file system of its own), "none" (not enforced)."""
    driver_version: str = ""
    cuda_version: str = ""
    gpu_probe: str = "none"
    """"ok", "none" (no NVIDIA driver here), or why the probe cannot tell."""
    gpus: tuple[Gpu, ...] = ()
    gpu_health: tuple[GpuHealth, ...] = ()
    """Of the GPUs that answer."""
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True)
class Condition:
    """Something wrong with the machine as a whole; it takes no new work while a blocking one holds."""

    kind: str
    """runtime_unavailable | disk_pressure | memory_pressure | driver_mismatch | gpu_probe_stuck | gpu_probe_failed |
    state_unwritable | kernel_log_unreadable."""
    message: str
    blocking: bool = True


@dataclass(frozen=True)
class GpuTelemetry:
    uuid: str
    util_percent: int = 0
    memory_used_mib: int = 0
    temperature_c: int = 0
    power_mw: int = 0


class AllocationState(str, Enum):
    """Where one allocation stands on its machine."""

    PREPARING = "preparing"  # `step` says what is going on
    RUNNING = "running"  # started and verified
    STOPPING = "stopping"
    GONE = "gone"  # container, storage mount and network are removed: capacity may be given again
    FAILED = "failed"  # could not be started; everything that was made for it is removed again
    RESTARTING = "restarting"  # its container had vanished or stopped; being started again on the same storage


class Step(str, Enum):
    """The agent's part of Provisioning (spec 20)."""

    PULLING_IMAGE = "pulling_image"
    STORAGE = "storage"
    STARTING = "starting"
    VERIFYING = "verifying"


@dataclass(frozen=True)
class LogLine:
    n: int
    """Counts from 1 in each allocation; the server keeps each number once."""
    text: str


@dataclass(frozen=True)
class AllocationReport:
    id: str
    generation: int
    """The generation this machine has converged to (or is converging to, while preparing or stopping)."""
    state: AllocationState
    step: Step | None = None
    message: str = ""
    """For people: why it failed or restarts, what is seen instead of what was asked."""
    gpus: tuple[str, ...] = ()
    """UUIDs seen inside the container after its start."""
    host_key: str = ""
    """Public host key line of its sshd ("ssh-ed25519 AAAA…"), made on this machine."""
    oom_kills: int = 0
    """Out-of-memory kills in its cgroup since it was placed."""
    exit_code: int | None = None
    restarts: int = 0
    container: str = ""
    log: tuple[LogLine, ...] = ()
    """Provisioning log lines the server has not confirmed yet."""
    log_tail: str = ""
    """The last of the container's own output; only with GONE and FAILED."""


@dataclass(frozen=True)
class Hello:
    """First frame of a session. The machine's secret is in the Authorization header (`Bearer`)."""

    protocol: int
    release: str
    instance: str
    """Random, made when the agent process started, never stored: tells a copy from a reconnect."""
    boot_id: str
    pid: int
    auth_scheme: str = "bearer"
    incarnation: str = ""
    """The site's incarnation this machine last worked under ("" = none yet)."""


@dataclass(frozen=True)
class Welcome:
    machine: str
    name: str
    epoch: int
    incarnation: str
    report_every_s: float
    first_report_in_s: float = 0.0
    """Jitter chosen by the server, so that a fleet does not report in one second."""


@dataclass(frozen=True)
class Report:
    seq: int
    """Counts from 1 in each session. Of queued reports only the newest counts."""
    release: str
    boot_id: str
    pid: int
    inventory_digest: str
    inventory: Inventory | None = None
    conditions: tuple[Condition, ...] = ()
    gpu_telemetry: tuple[GpuTelemetry, ...] = ()
    cpu_percent: float = 0.0
    memory_used_mib: int = 0
    allocations: tuple[AllocationReport, ...] = ()
    """Everything of Corral's on this machine, known to the server or not."""
    disk_free_mib: dict[str, int] = field(default_factory=dict)
    """Of the inventory's disks, by mount: what is free changes all the time."""
    data_location: DataLocationSeen | None = None
    """None: none is chosen, as far as this machine was told."""
    update: UpdateReport | None = None
    """What becomes of the update it was asked for last; None: nothing goes on and nothing failed."""
    kernel_lines: tuple[KernelLine, ...] = ()
    """Of this `boot_id`, oldest first, those that the server has not confirmed yet; of many only the first."""


@dataclass(frozen=True)
class Ack:
    seq: int
    need_inventory: bool = False
    log_seen: dict[str, int] = field(default_factory=dict)
    """Per allocation id: the highest provisioning log line number that is stored."""
    describe: tuple[str, ...] = ()
    """Allocations the server does not know: send `Described` for them."""
    forget: tuple[str, ...] = ()
    """Allocations whose GONE or FAILED is stored: the agent may forget them."""
    kernel_seen: int = -1
    """Kernel lines of this boot up to this one were judged."""


@dataclass(frozen=True)
class DesiredAllocation:
    """What one allocation should be. The agent converges each by its own task."""

    id: str
    generation: int
    stop: bool
    kind: str
    """"compute_cluster"; later kinds of workload come with their own value."""
    org: str
    workspace: str
    workload: str
    """Ids, for the container's labels."""
    name: str
    """The workload's name: the container's host name."""
    image: str
    gpus: tuple[str, ...]
    """GPU UUIDs, in PCI bus order."""
    vcpu: int
    ram_mib: int
    storage_mib: int
    pids: int = 4096
    shm_mib: int = 64
    env: dict[str, str] = field(default_factory=dict)
    authorized_keys: tuple[str, ...] = ()
    seconds_left: int | None = None
    """Until `must_end_by`; enforced on the agent's monotonic clock. None = no limit."""
    stop_grace_s: int = 10
    drives: tuple[str, ...] = ()
    """Names of drives kept on this machine, mounted read-only at /drives/NAME."""


@dataclass(frozen=True)
class Desired:
    """Everything the server wants on this machine. An allocation that is missing here is never stopped for that."""

    allocations: tuple[DesiredAllocation, ...]
    data_location: DataLocation | None = None
    """None says nothing: what was told before stands."""


@dataclass(frozen=True)
class Described:
    """What the agent was once told to run and the server does not know (a restored database)."""

    allocations: tuple[DesiredAllocation, ...]


class StreamTarget(str, Enum):
    SSH = "ssh"
    PORT = "port"  # TCP to `port` on the container's own loopback
    LOGS = "logs"  # the container's output, then what follows


@dataclass(frozen=True)
class OpenStream:
    """Dial one stream back, at once. Good once and for 10 s."""

    stream: str
    url: str
    """Absolute path (or wss URL) to dial with the machine's credential."""
    allocation: str
    generation: int
    target: StreamTarget
    port: int = 0


@dataclass(frozen=True)
class StreamRefused:
    """The agent's answer when it will not or cannot dial a stream back."""

    stream: str
    message: str


@dataclass(frozen=True)
class Removed:
    """This machine was removed: stop all work, forget the credential. Never answered, never undone."""

    message: str


@dataclass(frozen=True)
class JoinRequest:
    """Body of `POST /api/v1/agent/join`."""

    token: str
    key: str
    """The agent's own 256-bit key, hex; the server keeps only its SHA-256."""
    hostname: str
    protocol: int
    release: str
    arch: str = ""


@dataclass(frozen=True)
class JoinAnswer:
    machine: str
    name: str
    org: str
    cluster: str
    incarnation: str


AGENT_MESSAGES: dict[str, type[Any]] = {
    "hello": Hello,
    "report": Report,
    "described": Described,
    "stream_refused": StreamRefused,
    "fault_cleared": FaultCleared,
}
SERVER_MESSAGES: dict[str, type[Any]] = {
    "welcome": Welcome,
    "ack": Ack,
    "desired": Desired,
    "open_stream": OpenStream,
    "clear_fault": ClearFault,
    "update": Update,
    "removed": Removed,
}
