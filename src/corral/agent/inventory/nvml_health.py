"""A GPU's own counters, by NVML (spec 40, "GPUs and their health"): each asked in its own try; the server judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from corral.protocol.gpu_faults import GpuHealth

T = TypeVar("T")
NOT_TOLD = -1
LINK_COUNT_FIELD, RECOVERY_ACTION_FIELD = 91, 230
"""NVML_FI_DEV_NVLINK_LINK_COUNT and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older packages do not name the second."""


class HealthReader:
    """Asks an NVML that is initialised. Nothing here raises an `NVMLError`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self, handle: Any, uuid: str) -> GpuHealth:
        nvml = self._nvml
        links, up = self._links(handle)
        return GpuHealth(
            uuid,
            ecc_volatile=self._errors(handle, nvml.NVML_VOLATILE_ECC),
            ecc_aggregate=self._errors(handle, nvml.NVML_AGGREGATE_ECC),
            remap_failed=self._optional(lambda: bool(nvml.nvmlDeviceGetRemappedRows(handle)[3]), False),
            nvlinks=links,
            nvlinks_up=up,
            recovery_action=self._field(handle, RECOVERY_ACTION_FIELD),
        )

    def _number(self, call: Callable[..., int], *given: Any) -> int:
        return self._optional(lambda: int(call(*given)), NOT_TOLD)

    def _optional(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except (self._nvml.NVMLError, ValueError):
            return otherwise

    def _errors(self, handle: Any, counter: int) -> int:
        """Return the uncorrectable memory errors: of both memories, or (before Ampere) their total."""
        nvml = self._nvml
        places = (nvml.NVML_MEMORY_LOCATION_DRAM, nvml.NVML_MEMORY_LOCATION_SRAM)
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        found = [self._number(nvml.nvmlDeviceGetMemoryErrorCounter, handle, uncorrected, counter, at) for at in places]
        told = [count for count in found if count != NOT_TOLD]
        return sum(told) if told else self._number(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, counter)

    def _links(self, handle: Any) -> tuple[int, int]:
        """Return of how many NVLinks the GPU tells the state, and how many of them are up.

        A link that cannot be read says nothing of the others. Older drivers do not tell how many there are: then
        the first that does not exist ends them.
        """
        nvml = self._nvml
        told = self._field(handle, LINK_COUNT_FIELD)
        states = []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS if told == NOT_TOLD else min(told, nvml.NVML_NVLINK_MAX_LINKS)):
            try:
                states.append(int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
            except (nvml.NVMLError, ValueError) as error:
                if getattr(error, "value", None) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    break
        return len(states), sum(state == nvml.NVML_FEATURE_ENABLED for state in states)

    def _field(self, handle: Any, field: int) -> int:
        def ask() -> int:
            (told,) = self._nvml.nvmlDeviceGetFieldValues(handle, [field])
            return int(told.value.uiVal) if told.nvmlReturn == self._nvml.NVML_SUCCESS else NOT_TOLD

        return self._optional(ask, NOT_TOLD)
