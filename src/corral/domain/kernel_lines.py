"""What a line of the kernel's log says of a GPU (spec 40, "GPUs and their health": the agent sends the line).

Every driver release words its lines a little differently, and a machine's root may send anything:
what cannot be read says nothing, and nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from corral.domain.xids import Policy, rule

LONGEST = 500
"""Characters of a line that are read."""


class Verdict(str, Enum):
    NOTHING = "nothing"  # part of a story whose end another line tells
    EVENT = "event"
    LOOK = "look"  # an event that a person should look at
    FENCE = "fence"


@dataclass(frozen=True)
class Said:
    """One line, read."""

    slot: str
    """The GPU's (or switch's) place on the PCI bus, e.g. "0000:3f:00"."""
    code: str
    """e.g. xid_79, sxid_12028, amd_reset_failed."""
    verdict: Verdict
    meaning: str
    process: str = ""
    """pid/name of whose work it was, as far as the line tells."""
    of_switch: bool = False
    """It is about an NVSwitch, not about a GPU."""


def read(line: str) -> Said | None:
    """Return what a line says; None = nothing of a GPU, or nothing that can be read."""
    line = line[:LONGEST]
    readers = (reader for word, reader in _READERS if word in line)
    return next((said for reader in readers if (said := reader(line)) is not None), None)


Place = tuple[int, int, int]
_PLACE = r"(?:PCI:)?(?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PARTS = re.compile(r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?", re.IGNORECASE)


def place(slot: str) -> Place | None:
    """Return (domain, bus, device) of a PCI address in any spelling; None when it is none.

    The function is left out: lines do not name it, and a GPU's other functions are its own.
    """
    parts = _PARTS.fullmatch(slot.strip())
    if parts is None:
        return None
    domain, bus, device = (int(part or "0", 16) for part in parts.groups())
    return domain, bus, device


def _spelled(slot: str) -> str:
    domain, bus, device = place(slot) or (0, 0, 0)
    return f"{domain:04x}:{bus:02x}:{device:02x}"


# --- NVIDIA

_XID = re.compile(rf"NVRM: Xid \(({_PLACE})\): ([0-9]{{1,9}})(?![0-9])(.*)")
_OFF_THE_BUS = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?({_PLACE})\S* .{{0,80}}fallen off the bus")
_INIT_FAILED = re.compile(rf"NVRM: GPU (?:at )?({_PLACE}):? RmInitAdapter failed")
_SXID = re.compile(rf"nvidia-nvswitch[0-9]+: SXid \(({_PLACE})\): ([0-9]{{1,9}})(?![0-9])(.*)")
_PROCESS = re.compile(r"pid=([0-9]+)(?:, name=([^,]*))?")
_FATAL = re.compile(r"\bFatal\b")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)
_ACTION = re.compile(r" to 0x([0-9a-fA-F]{1,8})\b")
_REGISTERS = re.compile(r"link [0-9]+\s?\((0x[0-9a-fA-F]+(?:, 0x[0-9a-fA-F]+){6})\)")
_CORRECTED_BY_THE_LINK = 1 << 0 | 1 << 23 | 1 << 30
_ACTIONS_WITHOUT_RESET = frozenset({0, 3, 5})
"""None, drain of peer-to-peer work, recovery of IMEX."""


def _xid(line: str) -> Said | None:
    found = _XID.search(line)
    if found is None:
        return None
    number, rest = int(found[2]), found[3]
    known = rule(number)
    return Said(
        _spelled(found[1]), f"xid_{number}", _XID_VERDICTS[known.policy](rest), known.meaning, process=_process(rest)
    )


def _process(rest: str) -> str:
    found = _PROCESS.search(rest)
    return f"{found[1]}/{(found[2] or '').strip()}" if found else ""


def _by_word(rest: str) -> Verdict:
    if _FATAL.search(rest):
        return Verdict.FENCE
    return Verdict.EVENT if _NONFATAL.search(rest) else Verdict.LOOK


def _by_action(rest: str) -> Verdict:
    found = _ACTION.search(rest)
    if found is None:
        return Verdict.LOOK
    return Verdict.FENCE if needs_reset(int(found[1], 16)) else Verdict.EVENT


def needs_reset(action: int) -> bool:
    """Return whether a recovery action of the driver means that the GPU cannot be used as it is."""
    return action not in _ACTIONS_WITHOUT_RESET


def _by_registers(rest: str) -> Verdict:
    found = _REGISTERS.search(rest)
    if found is None:
        return Verdict.FENCE
    first, *others = (int(register, 16) for register in found[1].split(", "))
    harmless = first and not first & ~_CORRECTED_BY_THE_LINK and not any(others)
    return Verdict.EVENT if harmless else Verdict.FENCE


_XID_VERDICTS: dict[Policy, Callable[[str], Verdict]] = {
    Policy.FENCE: lambda _: Verdict.FENCE,
    Policy.EVENT: lambda _: Verdict.EVENT,
    Policy.LOOK: lambda _: Verdict.LOOK,
    Policy.FATAL: _by_word,
    Policy.RECOVERY: _by_action,
    Policy.NVLINK: _by_registers,
}


def _off_the_bus(line: str) -> Said | None:
    """The same fault in the driver's other words, which have no number."""
    found = _OFF_THE_BUS.search(line)
    return Said(_spelled(found[1]), "xid_79", Verdict.FENCE, rule(79).meaning) if found else None


def _init_failed(line: str) -> Said | None:
    """No fence by itself: a GPU that NVML then does not list is missing, and fenced for that."""
    found = _INIT_FAILED.search(line)
    return (
        Said(_spelled(found[1]), "nvrm_init_failed", Verdict.EVENT, "the driver could not start it") if found else None
    )


def _sxid(line: str) -> Said | None:
    found = _SXID.search(line)
    if found is None:
        return None
    verdict = Verdict.LOOK if _FATAL.search(found[3]) else Verdict.EVENT
    return Said(_spelled(found[1]), f"sxid_{int(found[2])}", verdict, "NVSwitch error", of_switch=True)


# --- AMD

_AMD = re.compile(rf"amdgpu ({_PLACE}): (?:amdgpu: )?(.*)")
_RESET_ENDED = re.compile(r"GPU reset end with ret = (-?[0-9]{1,9})\b")
_UNCORRECTABLE = re.compile(r"(?<![0-9])([0-9]{1,20}) uncorrectable hardware errors detected in (\w{1,20}) block")
_RESET_FAILED = re.compile(r"GPU reset(?:\([0-9]+\))? failed")
_RESET = re.compile(r"GPU reset\([0-9]+\) succeeded|device wedged, but recovered")
_NO_REAL_COUNT = 0xFFFF0
"""A counter that some firmware adds with each question; no hardware has so many errors."""


def _amd(line: str) -> Said | None:
    found = _AMD.search(line)
    if found is None:
        return None
    judged = _amd_words(found[2])
    return Said(_spelled(found[1]), *judged) if judged else None


def _amd_words(text: str) -> tuple[str, Verdict, str] | None:
    """Return code, verdict and meaning. A reset that "succeeded, trying to resume" may fail yet."""
    ended = _RESET_ENDED.search(text)
    errors = _UNCORRECTABLE.search(text) if " uncorrectable hardware errors" in text else None
    if errors is not None:
        real = 0 < int(errors[1]) < _NO_REAL_COUNT
        if not real:
            return "amd_ras_ue_bogus", Verdict.EVENT, "an error counter that cannot be true"
        return "amd_ras_ue", Verdict.FENCE, f"uncorrectable error in its {errors[2]} block"
    if _RESET_FAILED.search(text) or (ended is not None and int(ended[1]) != 0):
        return "amd_reset_failed", Verdict.FENCE, "its reset failed"
    if "device wedged, needs recovery" in text:
        return "amd_reset_failed", Verdict.FENCE, "it is wedged"
    if "GPU reset succeeded, trying to resume" in text or "GPU reset begin" in text:
        return "amd_reset_intermediate", Verdict.NOTHING, "it is being reset"
    if _RESET.search(text) or ended is not None:
        return "amd_reset_ok", Verdict.EVENT, "it was reset; what ran on it is lost"
    return None


_READERS: tuple[tuple[str, Callable[[str], Said | None]], ...] = (
    ("NVRM: Xid (", _xid),
    ("fallen off the bus", _off_the_bus),
    ("RmInitAdapter failed", _init_failed),
    (": SXid (", _sxid),
    ("amdgpu ", _amd),
)
"""By a word that such a line has: it is looked for before anything is taken apart, since most lines say nothing."""
