"""The machine's GPUs and what they do: the agent's side of the GPU probe (spec 40, "GPUs and their health")."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corral.agent.inventory import identity
from corral.agent.inventory.files import printable
from corral.agent.inventory.known import KnownGpus
from corral.agent.inventory.probe_messages import Answer, Device, ProbeStatus
from corral.agent.inventory.supervisor import Patience, ProbeSupervisor
from corral.protocol.gpu_faults import GpuHealth
from corral.protocol.messages import Condition, Gpu, GpuState, GpuTelemetry

DEADLINE_S = 20.0
"""For one answer of a probe that is up."""
SILENCE_STEP_S, SILENCE_LONGEST_S = 30.0, 120.0
"""In such steps it is told for how long a GPU has not answered: each is another inventory."""
PREFIX = {
    ProbeStatus.MISMATCH: "driver mismatch",
    ProbeStatus.FAILED: "failed",
    ProbeStatus.STARTING: "starting",
    ProbeStatus.STUCK: "stuck",
}


@dataclass(frozen=True)
class GpuReading:
    """What one call of the probe found."""

    gpus: tuple[Gpu, ...] = ()
    """In PCI order; those known and not seen now too."""
    telemetry: tuple[GpuTelemetry, ...] = ()
    """Of the GPUs that answer."""
    health: tuple[GpuHealth, ...] = ()
    """The same GPUs' counters, and for how long others have not answered."""
    driver_version: str = ""
    cuda_version: str = ""
    status: str = "none"
    """`Inventory.gpu_probe`: "ok", "none", or e.g. "stuck: process 812 does not come back from the NVIDIA driver"."""
    conditions: tuple[Condition, ...] = ()
    devices: Mapping[str, Device] = field(default_factory=dict)
    """By UUID, the GPUs that answer: who holds their memory (see `busy`)."""


class GpuProbe:
    """Owns the probe process and what is known of this machine's GPUs. Thread-safe but for `read` by two at once."""

    def __init__(
        self,
        state_dir: Path,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state_dir`: the agent's folder. `argv`: the probe's command line (None: of this package or archive)."""
        self._supervisor = ProbeSupervisor(state_dir, argv, env, patience, clock)
        self._known = KnownGpus(state_dir / "known-gpus.json")
        self._versions = ("", "")
        self._clock = clock
        self._silent_since: dict[str, float] = {}
        """By UUID."""

    @property
    def pid(self) -> int | None:
        """The probe process, while there is one."""
        return self._supervisor.pid

    def read(self, deadline_s: float = DEADLINE_S) -> GpuReading:
        """Return the GPUs as they are now. Takes at most about `deadline_s`; never raises."""
        answer = self._supervisor.ask(deadline_s)
        if answer.status is not ProbeStatus.OK:
            return self._without_data(answer)
        self._versions = (printable(answer.driver_version), printable(answer.cuda_version))
        gpus = identity.fold(self._known.gpus, answer.devices)
        unwritten = self._known.remember(identity.lasting(gpus))
        healthy = {gpu.uuid for gpu in gpus if gpu.state is GpuState.OK}
        devices = {device.uuid: device for device in answer.devices if device.uuid in healthy}
        return GpuReading(
            gpus=gpus,
            telemetry=tuple(telemetry(devices[gpu.uuid]) for gpu in gpus if gpu.uuid in devices),
            health=(*_health(gpus, devices), *self._silence(gpus, answer.devices)),
            driver_version=self._versions[0],
            cuda_version=self._versions[1],
            status="ok",
            conditions=_unwritten(unwritten),
            devices=devices,
        )

    def close(self) -> None:
        """Ask the probe process to end. One that is stuck in the driver is left alone."""
        self._supervisor.close()

    def _silence(self, gpus: Sequence[Gpu], devices: Sequence[Device]) -> Iterator[GpuHealth]:
        """Yield for how long GPUs have not answered while the driver did."""
        silent = [gpu for gpu in gpus if gpu.state is GpuState.UNREADABLE]
        now = self._clock()
        self._silent_since = {gpu.uuid: self._silent_since.get(gpu.uuid, now) for gpu in silent}
        lost = {name for device in devices if device.lost for name in (device.uuid, device.slot) if name}
        for gpu in silent:
            since = (now - self._silent_since[gpu.uuid]) // SILENCE_STEP_S * SILENCE_STEP_S
            for_s, is_lost = int(min(since, SILENCE_LONGEST_S)), not lost.isdisjoint((gpu.uuid, gpu.slot))
            if for_s or is_lost:
                yield GpuHealth(gpu.uuid, gpu.vendor, unreadable_s=for_s, lost=is_lost)

    def _without_data(self, answer: Answer) -> GpuReading:
        self._silent_since = {}  # it is not its GPUs that do not answer
        status, why = status_text(answer), why_unreadable(answer)
        return GpuReading(
            gpus=identity.unreadable(self._known.gpus, why),
            driver_version=self._versions[0],
            cuda_version=self._versions[1],
            status=status,
            conditions=conditions(answer, has_gpus=bool(self._known.gpus)),
        )


def _health(gpus: Sequence[Gpu], devices: Mapping[str, Device]) -> Iterator[GpuHealth]:
    for gpu in gpus:
        health = devices[gpu.uuid].health if gpu.uuid in devices else None
        if health is not None:
            yield health


def telemetry(device: Device) -> GpuTelemetry:
    return GpuTelemetry(device.uuid, device.util_percent, device.memory_used_mib, device.temperature_c, device.power_mw)


def status_text(answer: Answer) -> str:
    """Return `Inventory.gpu_probe` for an answer."""
    if answer.status not in PREFIX:
        return answer.status.value
    return printable(f"{PREFIX[answer.status]}: {answer.detail}")


def why_unreadable(answer: Answer) -> str:
    """Return what a GPU's detail says while NVML tells nothing."""
    if answer.status is ProbeStatus.NONE:
        return f"no health data: {answer.detail}"
    return f"no health data: the GPU probe is {PREFIX[answer.status]}"


def conditions(answer: Answer, has_gpus: bool) -> tuple[Condition, ...]:
    """Return what is wrong with the machine, not with one of its GPUs, when the probe has no data."""
    detail = printable(answer.detail)
    if answer.status is ProbeStatus.STUCK:
        advice = "reboot the machine if it stays so (never kill -9 the process: that may freeze the GPU)"
        return (Condition("gpu_probe_stuck", f"GPU probe: {detail}; {advice}"),)
    if answer.status is ProbeStatus.MISMATCH:
        advice = "load the new kernel module or reboot; running work goes on"
        text = f"the NVIDIA library and the loaded kernel module differ in version ({detail}); {advice}"
        return (Condition("driver_mismatch", text),)
    if has_gpus and answer.status in (ProbeStatus.FAILED, ProbeStatus.NONE):
        # Its GPUs are unreadable and so not assignable; work without GPUs may still come.
        text = f"GPUs were seen here and cannot be read: {detail}; check the NVIDIA driver with nvidia-smi"
        return (Condition("gpu_probe_failed", text, blocking=False),)
    return ()


def _unwritten(why: str) -> tuple[Condition, ...]:
    if not why:
        return ()
    return (Condition("state_unwritable", f"the list of known GPUs cannot be saved: {why}; free disk space"),)
