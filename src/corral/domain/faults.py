"""When a GPU is faulty, and for how long (spec 10, "GPU faults"; spec 40, "GPUs and their health").

A fault is *latched* until an admin clears it. What a latch is called, and that one cause makes one
latch, stands here; what the kernel's lines say in `kernel_lines.py`, the Xids in `xids.py`. A driver
mismatch, a dead probe, a sensor that cannot be read are no faults of a GPU: nothing here looks at them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any

from corral.domain.kernel_lines import needs_reset
from corral.domain.xids import RULES

MAX_LINES = 256
"""Kernel lines of one report that are read; the rest come again."""
MAX_EVIDENCE = 500
MISSING, UNREADABLE = "missing", "unreadable"
UNREADABLE_S = 60
"""A GPU that has not answered for so long is faulty: one look that fails, or two, are not."""
TOLD_MOST, TOLD_WITHIN = 20, timedelta(minutes=10)
"""Of faulty GPUs that leave a machine and come back people are told only so often: it may be made up."""
_NOT_TOLD = -1


@dataclass(frozen=True)
class Counters:
    """What a GPU's own counters say. -1 = it does not tell."""

    ecc_volatile: int = _NOT_TOLD
    """Uncorrectable memory errors since the driver was loaded ..."""
    ecc_aggregate: int = _NOT_TOLD
    """... and in the GPU's life."""
    remap_failed: bool = False
    nvlinks: int = 0
    """Of how many NVLinks the state could be read ..."""
    nvlinks_up: int = 0
    """... and how many of them are up."""
    recovery_action: int = _NOT_TOLD
    """What the driver asks for; 0 = nothing."""
    unreadable_s: int = 0
    """For so long it has not answered, while its driver did; then the others say nothing."""
    lost: bool = False
    """It does not answer, and the driver calls it lost."""

    @property
    def silent(self) -> bool:
        return self.lost or self.unreadable_s > 0

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Counters:
        """Return what `plain` gave."""
        return cls(**{one.name: plain[one.name] for one in fields(cls) if one.name in plain})


@dataclass(frozen=True)
class Health:
    """One GPU's counters, as its machine read them."""

    vendor: str
    uuid: str
    counters: Counters


@dataclass(frozen=True)
class Baseline:
    """What a GPU's counters are measured against: as last judged, or as read for the last clear.

    Kernel lines of `boot` up to `seq` were there when it was cleared, and count no more.
    """

    counters: Counters
    boot: str = ""
    seq: int = -1

    def covers(self, boot: str, seq: int) -> bool:
        return boot == self.boot and seq <= self.seq


@dataclass(frozen=True)
class Acknowledged:
    """What a machine answers when a GPU of its is cleared: its newest kernel line, and the GPU's counters now.

    `counters` None: the GPU does not answer.
    """

    boot: str
    seq: int
    counters: Counters | None


@dataclass(frozen=True)
class Fault:
    """A reason to fence a GPU. `evidence`: the line or the counter, for people.

    `times` is what a repeat adds to a latch's count: 0 for a state that only lasts.
    """

    code: str
    evidence: str
    times: int = 1
    boot: str = ""
    seq: int = -1
    """The last kernel line that says so, of which boot; -1 = a counter does."""


def by_counters(now: Counters, was: Counters | None) -> Iterator[Fault]:
    """Yield what a GPU's counters say is wrong with it, given those judged before (None: the first time).

    Memory errors count from there; the first time only those since the driver was loaded do, for a GPU's
    life before it came here is no fault. The other faults hold as long as they are there.
    """
    if now.silent:
        if now.lost or now.unreadable_s >= UNREADABLE_S:
            yield Fault(UNREADABLE, _why_silent(now), 0)
        return
    errors = max(now.ecc_volatile, 0) if was is None else _more_errors(now, was)
    if errors:
        yield Fault("ecc_uncorrected", f"{errors} more uncorrectable memory errors, by its counter")
    if now.remap_failed:
        yield Fault("row_remap_failed", "a row of its memory could not be replaced: have the card exchanged", 0)
    if was is not None and _links_down(now, was):
        yield Fault("nvlink_down", f"its {now.nvlinks} NVLinks are all down; {was.nvlinks_up} were up", 0)
    if now.recovery_action > 0 and needs_reset(now.recovery_action):
        yield Fault("recovery_action", f"the driver asks for {_action(now.recovery_action)}", 0)


def _links_down(now: Counters, was: Counters) -> bool:
    """Where fewer links than before can be read, the others may be up."""
    return not now.nvlinks_up and was.nvlinks_up > 0 and now.nvlinks >= max(was.nvlinks, 1)


def _why_silent(now: Counters) -> str:
    return "the driver says that it is lost" if now.lost else f"it has not answered for {now.unreadable_s} s"


def _more_errors(now: Counters, was: Counters) -> int:
    in_life = 0 if _NOT_TOLD in (now.ecc_aggregate, was.ecc_aggregate) else now.ecc_aggregate - was.ecc_aggregate
    since_load = now.ecc_volatile - max(was.ecc_volatile, 0)
    if since_load < 0 and now.ecc_aggregate == _NOT_TOLD:
        since_load = now.ecc_volatile  # the driver was loaded again, and counts anew
    return max(in_life, since_load, 0)


_ACTIONS = {1: "a reset", 2: "a reboot", 4: "a reset once its work is over", 6: "a bus reset", 7: "a reboot"}


def _action(code: int) -> str:
    return _ACTIONS.get(code, f"recovery action {code}")


def judged(now: Counters, was: Counters | None) -> Counters:
    """Return what the next counters are measured against: links that were once there or up are remembered, and an
    older report that comes late does not make old errors new. A GPU that is silent changes nothing."""
    if now.silent:
        return was or Counters()
    if was is None:
        return now
    told_in_life = now.ecc_aggregate != _NOT_TOLD  # then the count since the load need not begin anew
    return replace(
        _with_all_links(now, was),
        ecc_volatile=max(now.ecc_volatile, was.ecc_volatile) if told_in_life else now.ecc_volatile,
        ecc_aggregate=max(now.ecc_aggregate, was.ecc_aggregate),
    )


def cleared(now: Counters | None, was: Counters | None) -> Counters:
    """Return what counters are measured against once an admin has cleared the GPU: what it says now (None: nothing)."""
    if now is None or now.silent:
        return was or Counters()
    return _with_all_links(now, was) if was is not None else now


def _with_all_links(now: Counters, was: Counters) -> Counters:
    return replace(now, nvlinks=max(now.nvlinks, was.nvlinks), nvlinks_up=max(now.nvlinks_up, was.nvlinks_up))


# --- one cause, one fence

_CAUSES: Mapping[str, tuple[str, ...]] = {
    "silent": ("xid_79", "xid_119", "xid_120", "xid_143", MISSING, UNREADABLE),
    "memory": ("xid_48", "xid_94", "xid_95", "xid_140", "xid_171", "xid_172", "xid_175", "ecc_uncorrected"),
    "rows": ("xid_64", "row_remap_failed"),
    "links": ("xid_74", "xid_136", *(f"xid_{n}" for n in range(144, 151)), "xid_155", "nvlink_down"),
    "amd": ("amd_reset_failed", "amd_ras_ue"),
}
_CAUSE_OF = {code: cause for cause, codes in _CAUSES.items() for code in codes}
_FOLLOWS_ANY = frozenset({"xid_154", "recovery_action"})
"""What the driver asks for after whatever fault it was."""


def same_cause(code: str, latched: Collection[str]) -> str | None:
    """Return which of a GPU's latches this fault repeats; None: it is a new cause."""
    if code in latched:
        return code
    if code in _FOLLOWS_ANY:
        return next(iter(sorted(latched)), None)
    cause = _CAUSE_OF.get(code)
    return next((other for other in sorted(latched) if cause and _CAUSE_OF.get(other) == cause), None)


_MEANINGS = {
    "ecc_uncorrected": "uncorrectable memory errors",
    "row_remap_failed": "a memory row could not be replaced",
    "nvlink_down": "all its NVLinks are down",
    "recovery_action": "the driver asks for a recovery action",
    MISSING: "the driver does not list it any more",
    UNREADABLE: "it does not answer",
    "amd_reset_failed": "its reset failed",
    "amd_ras_ue": "uncorrectable hardware error",
}


def meaning(code: str) -> str:
    """Return what a latch's code means, for people."""
    kind, _, number = code.partition("_")
    if kind == "xid" and number.isdigit():
        known = RULES.get(int(number))
        return known.meaning if known else "an Xid that is not in the table"
    return _MEANINGS.get(code, code)
