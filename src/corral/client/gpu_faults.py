"""GPUs' faults in a cluster: what is latched, and clearing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from corral.client.decode import View, decode
from corral.client.machine_models import Fault
from corral.client.transport import Transport, quoted


@dataclass(frozen=True, kw_only=True)
class GpuFault(Fault):
    """`state`: open | gone (its GPU is on no machine now) | cleared; `machine` is where the GPU was last."""

    id: str
    machine: str
    gpu: str
    vendor: str
    state: str
    model: str = ""
    slot: str = ""
    cleared_at: datetime | None = None
    cleared_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class FaultsCleared(View):
    """`cleared`: what was latched; `still`: what the GPU has by its machine's answer, so that it stays fenced."""

    machine: str
    gpu: str
    dry_run: bool
    cleared: list[Fault]
    still: list[Fault]


class GpuFaults:
    """Of one cluster."""

    def __init__(self, transport: Transport, cluster_path: str) -> None:
        self._transport = transport
        self._path = cluster_path

    def list(self, state: str = "open", machine: str | None = None) -> Iterator[GpuFault]:
        """Yield faults, the newest first; `state`: open | gone | cleared | all."""
        for item in self._transport.pages(f"{self._path}/gpu-faults", {"state": state, "node": machine}):
            yield decode(GpuFault, item)

    def clear(self, machine: str, gpu: str) -> FaultsCleared:
        """Clear the faults of a GPU (its UUID). Errors: `NODE_NOT_CONNECTED`, `CONFLICT`."""
        return decode(FaultsCleared, self._transport.call("POST", self._clear(machine, gpu)))

    def would_clear(self, machine: str, gpu: str) -> FaultsCleared:
        """Return what `clear` would clear; changes nothing."""
        params = {"dry_run": "true"}
        return decode(FaultsCleared, self._transport.call("POST", self._clear(machine, gpu), params=params))

    def _clear(self, machine: str, gpu: str) -> str:
        return f"{self._path}/nodes/{quoted(machine)}/gpus/{quoted(gpu)}/clear-fault"
