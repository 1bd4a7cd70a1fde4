"""The GPU probe: a process of its own that asks NVML (spec 40, "GPUs and their health").

A sick driver may block a call for ever or crash its caller; that must not be the agent. The
probe keeps one NVML session as long as it lives (initialising takes seconds on machines
without persistence mode), answers each line on its standard input with one line on its
standard output, and ends when its input ends or after any answer that is not ok.

Run as `python -m corral.agent.inventory.nvml_probe [ROOT]`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from corral.agent.inventory import driver_files, pci
from corral.agent.inventory.files import MIB, read_text
from corral.agent.inventory.nvml_health import HealthReader
from corral.agent.inventory.probe_messages import Answer, Device, GpuProcess, ProbeStatus
from corral.protocol import codec

T = TypeVar("T")
ROUTE = "probe"
"""Type of the frames that carry answers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer until the input ends. The only argument is the root of the files to read."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the agent, which then closes our input
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # whatever a driver library prints must not stand among the answers
        return serve(Path(given[0]) if given else Path("/"), out.write, out.flush)


def serve(root: Path, write: Callable[[str], object], flush: Callable[[], object]) -> int:
    """Answer each line of standard input; return the exit status."""
    session: Session | None = None
    for _ in sys.stdin:
        answer, session = _answer(session, root)
        write(codec.encode(ROUTE, answer) + "\n")
        flush()
        if answer.status is not ProbeStatus.OK:
            break
    if session is not None:
        session.close()
    return 0


def _answer(session: Session | None, root: Path) -> tuple[Answer, Session | None]:
    try:
        import pynvml
    except ImportError:
        return Answer(ProbeStatus.NONE, "the Python package nvidia-ml-py is not installed"), session
    try:
        session = session or Session(pynvml, root)
        return session.read(), session
    except pynvml.NVMLError as error:
        return Answer(_status_of(error.value, pynvml), str(error)), session


def _status_of(code: int, nvml: Any) -> ProbeStatus:
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return ProbeStatus.NONE
    return ProbeStatus.MISMATCH if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH else ProbeStatus.FAILED


class Session:
    """One NVML session. Methods raise `NVMLError` only where NVML as a whole does not work."""

    def __init__(self, nvml: Any, root: Path) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        self._health = HealthReader(nvml)
        self._root = root
        self._library = loaded_library()
        self._identities: dict[int, Device] = {}
        """By index, which stays the same within a session: who a GPU was before it got lost."""

    def read(self) -> Answer:
        # A session keeps the library it loaded. An upgrade under it would go unseen, while every
        # container started from then on gets the new library and fails.
        if self._library is not None and loaded_library() != self._library:
            return Answer(ProbeStatus.REOPEN, "the driver library was replaced")
        count = int(self._nvml.nvmlDeviceGetCount())
        devices = [self._device(index) for index in range(count)]
        if not all(device.uuid and device.slot for device in devices):
            devices = list(driver_files.identify(devices, driver_files.listed(self._root)))
        cuda = self._optional(self._nvml.nvmlSystemGetCudaDriverVersion, 0)
        return Answer(
            ProbeStatus.OK,
            driver_version=self._optional(self._nvml.nvmlSystemGetDriverVersion, ""),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            devices=tuple(devices),
        )

    def close(self) -> None:
        self._optional(self._nvml.nvmlShutdown, None)

    def _optional(self, call: Callable[[], T], otherwise: T) -> T:
        """Return what `call` returns; `otherwise` when this GPU, driver or sensor does not tell."""
        try:
            return call()
        except (self._nvml.NVMLError, ValueError):
            return otherwise

    def _device(self, index: int) -> Device:
        """Ask one GPU; its trouble stays its own."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._identities[index] = identity = self._identity(index, handle)
            total, used, held = self._memory(handle)
        except (self._nvml.NVMLError, ValueError) as error:
            lost = getattr(error, "value", None) == self._nvml.NVML_ERROR_GPU_IS_LOST
            known = self._identities.get(index, Device(index))
            return replace(known, error=str(error) or type(error).__name__, lost=lost)
        return self._with_use(replace(identity, memory_mib=total, memory_used_mib=used, held_mib=held), handle)

    def _identity(self, index: int, handle: Any) -> Device:
        nvml = self._nvml
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
        slot = pci.normal(bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id)
        # Remembered at once: a GPU that tells its slot but not its UUID is still known by the slot.
        before = self._identities.setdefault(index, Device(index, slot=slot))
        return Device(
            index=index,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            slot=slot or before.slot,
            model=self._optional(lambda: nvml.nvmlDeviceGetName(handle), ""),
            serial=self._optional(lambda: nvml.nvmlDeviceGetSerial(handle), ""),  # GeForce has none
            minor=self._optional(lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1),
        )

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """Return total, used, and held (used less the driver's reserve, 0 on drivers before 510) in MiB."""
        nvml = self._nvml
        second = self._optional(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2), None)
        if second is not None:
            return second.total // MIB, second.used // MIB, second.used // MIB
        first = nvml.nvmlDeviceGetMemoryInfo(handle)
        return first.total // MIB, first.used // MIB, 0

    def _with_use(self, device: Device, handle: Any) -> Device:
        nvml = self._nvml
        processes, why_not = self._processes(handle)
        return replace(
            device,
            mig=self._optional(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0) == nvml.NVML_DEVICE_MIG_ENABLE,
            processes=processes,
            processes_error=why_not,
            util_percent=self._optional(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0),
            temperature_c=self._optional(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), 0
            ),
            power_mw=self._optional(lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)), 0),
            health=self._health.read(handle, device.uuid),
        )

    def _processes(self, handle: Any) -> tuple[tuple[GpuProcess, ...], str]:
        nvml = self._nvml
        try:
            try:
                found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except nvml.NVMLError_FunctionNotFound:  # drivers before 510
                found = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return (), ""
        except nvml.NVMLError as error:
            return (), str(error)
        return tuple(GpuProcess(int(p.pid), (p.usedGpuMemory or 0) // MIB) for p in found), ""


def loaded_library() -> tuple[str, int, int] | None:
    """Return path, device and inode of the library that loading NVML anew would give; None when none is loaded."""
    mapped = re.search(r"(?m)\s(/\S*/)libnvidia-ml\.so[^/\n]*$", read_text(Path("/"), "proc/self/maps"))
    if mapped is None:
        return None
    path = mapped[1] + "libnvidia-ml.so.1"
    try:
        status = Path(path).stat()
    except OSError:
        return (path, 0, 0)
    return (path, status.st_dev, status.st_ino)


if __name__ == "__main__":
    sys.exit(main())
