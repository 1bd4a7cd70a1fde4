"""PCI bus ids: one spelling, one order (spec 40, "GPUs and their health": order by PCI bus).

NVML writes a domain of eight digits ("00000000:1B:00.0"), the kernel one of four
("0000:1b:00.0"). Corral writes the kernel's form, as lspci and the kernel log do.
"""

from __future__ import annotations

import re

_SHAPE = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE)


def normal(bus_id: str) -> str:
    """Return `bus_id` as "0000:1b:00.0"; "" when it is no PCI bus id."""
    parts = _parts(bus_id)
    return "" if parts is None else "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)


def order(bus_id: str) -> tuple[int, ...]:
    """Return the key that sorts by domain, bus, device, function as numbers; what is no bus id comes last."""
    parts = _parts(bus_id)
    return (1,) if parts is None else (0, *parts)


def _parts(bus_id: str) -> tuple[int, int, int, int] | None:
    match = _SHAPE.fullmatch(bus_id.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return domain, bus, device, function
