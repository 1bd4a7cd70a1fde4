"""One simulated machine: the agent's own link and convergence over a driver without containers (spec 40).

Lean on purpose: no threads, no files, one socket. What it reports is made up, what it says is the real protocol.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import corral
from corral.agent.calls import InlineCalls
from corral.agent.converge import Converger, ignore
from corral.agent.drivers.sim import SimConfig, SimDriver
from corral.agent.inventory.digest import digest
from corral.agent.link import Link, Pace
from corral.agent.site import Site
from corral.agent.work import BootClock, WorkMemory
from corral.protocol.data_location import DataLocation, DataLocationSeen, DataState
from corral.protocol.gpu_faults import ClearFault, FaultCleared
from corral.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Described,
    Desired,
    Disk,
    Gpu,
    GpuTelemetry,
    Hello,
    Inventory,
    OpenStream,
    Report,
    Welcome,
)
from corral.protocol.updates import Update, UpdateReport, UpdateState
from corral.sim.faults import FaultKind, SimGpus

GIB = 1024
GPU_MEMORY_MIB = 81_559


@dataclass(frozen=True)
class Hardware:
    """What each machine of a simulated fleet is. Sizes in MiB."""

    gpus: int = 8
    gpu_model: str = "NVIDIA H100 80GB HBM3"
    vcpus: int = 192
    memory_mib: int = 2048 * GIB
    storage_mib: int = 14_000 * GIB
    network_mbps: int = 400_000


@dataclass(frozen=True)
class Identity:
    """A machine that has joined: its key is its credential."""

    key: str
    machine: str
    name: str
    incarnation: str = ""


def inventory(name: str, hardware: Hardware) -> Inventory:
    """Return what a machine of this name reports; the same name gives the same GPUs."""
    return Inventory(
        hostname=name,
        arch="x86_64",
        os="Corral simulator",
        kernel="6.1.0-sim",
        cpu_model="AMD EPYC 9654 96-Core Processor (simulated)",
        vcpus=hardware.vcpus,
        memory_mib=hardware.memory_mib,
        storage_mib=hardware.storage_mib,
        network_mbps=hardware.network_mbps,
        runtime="sim",
        driver_version="570.86.15" if hardware.gpus else "",
        cuda_version="12.8" if hardware.gpus else "",
        gpu_probe="ok" if hardware.gpus else "none",
        gpus=tuple(_gpu(name, n, hardware.gpu_model) for n in range(hardware.gpus)),
        disks=(
            Disk("/", "/dev/nvme0n1p2", "ext4", 960 * GIB, 700 * GIB, os=True),
            Disk("/mnt/nvme1", "/dev/nvme1n1", "xfs", 3_800 * GIB, 3_700 * GIB),
        ),
    )


def _gpu(name: str, number: int, model: str) -> Gpu:
    seed = hashlib.sha256(f"{name}/{number}".encode()).hexdigest()
    uuid = f"GPU-{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-{seed[20:32]}"
    slot = f"00000000:{16 + 15 * number:02X}:00.0"
    return Gpu("nvidia", uuid, slot, model, GPU_MEMORY_MIB, serial=str(int(seed[32:43], 16)), minor=number)


class SimMachine:
    """The `Peer` of one link. `seen` is told the latency (s) of each answered report."""

    def __init__(
        self,
        site: Site,
        identity: Identity,
        hardware: Hardware,
        *,
        latency_s: float = 0.0,
        pace: Pace = Pace(),
        seen: Callable[[float], None] = ignore,
    ) -> None:
        self.identity = identity
        self._inventory = inventory(identity.name, hardware)
        self.faults = SimGpus(self._inventory.gpus)
        self._refresh()
        self._seen = seen
        self.release = corral.__version__
        self.on_update: Callable[[SimMachine, Update], None] = SimMachine.updated
        """What becomes of an update that the site asks for: at once it has succeeded."""
        self.update_report: UpdateReport | None = None
        self._incarnation = identity.incarnation
        self._clock = BootClock(boot_id=f"sim-{secrets.token_hex(8)}")
        self._instance = secrets.token_hex(16)
        driver = SimDriver(SimConfig(identity.machine, hardware.storage_mib))
        self.work = Converger(identity.machine, driver, WorkMemory(), InlineCalls(latency_s), self._clock)
        self.link = Link(site, identity.key, self, pace)
        self.work.hooks.changed = self.link.report_soon
        self._data = DataLocation(0)
        self.sent = 0
        self._idle = self._telemetry(frozenset())
        self._busy: frozenset[str] = frozenset()
        self._telemetry_now = self._idle

    async def run(self) -> str:
        """Go on until the machine is removed; return the site's message. Cancelled: the machine is cut off."""
        await self.work.adopt()
        message = await self.link.run()
        await self.work.end_everything()
        return message

    async def close(self) -> None:
        await self.work.close()

    # -- the link's Peer --------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            release=self.release,
            instance=self._instance,
            boot_id=self._clock.boot_id,
            pid=1,
            incarnation=self._incarnation,
        )

    def welcomed(self, welcome: Welcome) -> None:
        self._incarnation = welcome.incarnation

    def report(self, seq: int, whole: bool) -> Report:
        self.sent += 1
        return Report(
            seq=seq,
            release=self.release,
            boot_id=self._clock.boot_id,
            pid=1,
            inventory_digest=self._digest,
            inventory=self._inventory if whole else None,
            gpu_telemetry=self._gpu_telemetry(),
            cpu_percent=3.0,
            memory_used_mib=self._inventory.memory_mib // 50,
            allocations=self.work.reports(),
            kernel_lines=self.faults.lines,
            data_location=self._data_location(),
            update=self.update_report,
        )

    def acked(self, ack: Ack, latency_s: float) -> Described | None:
        self._seen(latency_s)
        if self.faults.lines:
            self.faults.confirmed(ack.kernel_seen)
        if ack.log_seen:
            self.work.log_seen(ack.log_seen)
        if ack.forget:
            self.work.forget(ack.forget)
        return self.work.describe(ack.describe) if ack.describe else None

    def desired(self, desired: Desired) -> None:
        if desired.data_location is not None and desired.data_location != self._data:
            self._data = desired.data_location
            self.link.report_soon()
        self.work.accept(desired)

    def open_stream(self, ask: OpenStream) -> None:
        self.link.refuse_stream(ask.stream, "this machine is simulated: there is no container to connect to")

    def update(self, ask: Update) -> None:
        self.on_update(self, ask)

    def updated(self, ask: Update) -> None:
        """Be of the release that is asked for: it comes back as one that was restarted."""
        self.release, self.update_report = ask.release, None
        self._instance = secrets.token_hex(16)
        self.link.drop()

    def refused(self, ask: Update, why: str) -> None:
        """Stay what it is, and say why."""
        self.update_report = UpdateReport(ask.ask, UpdateState.FAILED, why)
        self.link.report_soon()

    def _data_location(self) -> DataLocationSeen | None:
        """No folder is made: what is wanted counts as made at once."""
        if not self._data.path:
            return None
        return DataLocationSeen(self._data.generation, DataState.READY, copies=len(self.work.drives_in_use()))

    def clear_fault(self, ask: ClearFault) -> None:
        answer = FaultCleared(ask.ask, self._clock.boot_id, self.faults.newest, self.faults.of(ask.uuid))
        self.link.fault_cleared(answer)

    @property
    def has_gpus(self) -> bool:
        return bool(self._inventory.gpus)

    def break_gpu(self, number: int, kind: FaultKind) -> None:
        """Have one of its GPUs be faulty, and say so."""
        self.faults.break_gpu(number, kind)
        self._refresh()
        self.link.report_soon()

    def mend(self, number: int) -> None:
        """Have a GPU's links up again; what was said of it stays said."""
        self.faults.mend(number)
        self._refresh()
        self.link.report_soon()

    # -- what is made up --------------------------------------------------------------------

    def _refresh(self) -> None:
        self._inventory = replace(self._inventory, gpu_health=self.faults.health)
        self._digest = digest(self._inventory)

    def _gpu_telemetry(self) -> tuple[GpuTelemetry, ...]:
        busy = self.work.allocated_gpus()
        if busy != self._busy:
            self._busy = busy
            self._telemetry_now = self._telemetry(busy)
        return self._telemetry_now

    def _telemetry(self, busy: frozenset[str]) -> tuple[GpuTelemetry, ...]:
        return tuple(
            GpuTelemetry(gpu.uuid, 93, GPU_MEMORY_MIB * 9 // 10, 61, 620_000)
            if gpu.uuid in busy
            else GpuTelemetry(gpu.uuid, 0, 0, 31, 71_000)
            for gpu in self._inventory.gpus
        )
