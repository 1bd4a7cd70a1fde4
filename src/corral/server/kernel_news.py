"""Which kernel lines of a session are worth a transaction now (design decision 8).

A new fault is judged at once. One that a GPU says again and again is judged once a minute, with all that
came meanwhile: what is not confirmed comes again, so nothing is lost. Where many wait there may be more behind
them that the agent does not send yet, so those are judged soon, whatever they say.

All of it runs on the loop: each line is read once, and of a session only so many a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from corral.domain.faults import MAX_LINES
from corral.domain.kernel_lines import read
from corral.protocol import gpu_faults as wire_faults
from corral.protocol import messages as wire
from corral.server.agent_codec import EXACT_MAX
from corral.server.budget import Budget
from corral.usecases.gpu_evidence import Judged

AGAIN_AFTER_S = 60.0
MANY, MANY_AFTER_S = 100, 5.0
"""An agent sends up to 200 lines at a time."""
MOST_REMEMBERED = 500
"""Beyond it the others wait until some are forgotten."""
READ_BURST, READ_A_SECOND = 1_000.0, 100.0
"""Lines; beyond it they are read when they come again."""

Key = tuple[str, str, str]
"""Slot, code and verdict, for what was harmless may be fatal the next time; "" each for a line that says nothing."""


class KernelNews:
    """Of one session."""

    __slots__ = ("_boot", "_clock", "_judged", "_judged_at", "_keys", "_keys_boot", "_reading", "_seen")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._boot = ""
        self._seen = -1
        self._judged: dict[Key, float] = {}
        self._judged_at = float("-inf")
        self._keys_boot = ""
        self._keys: Mapping[int, Key] = {}
        """Of the lines that wait to be judged, by their numbers."""
        self._reading = Budget(READ_BURST, READ_A_SECOND, clock)

    def due(self, said: wire.Report) -> bool:
        """Return whether one of the report's lines should be judged now."""
        fresh = self._fresh(said)
        if len(fresh) >= MANY and self._clock() - self._judged_at >= MANY_AFTER_S:
            return True
        keys = self._read(said.boot_id, fresh)
        self._forget_old()
        return any(key not in self._judged for key in keys.values()) and len(self._judged) < MOST_REMEMBERED

    def judged(self, said: wire.Report, upto: Judged) -> None:
        """Remember what of the report's lines was judged."""
        keys = self._read(said.boot_id, self._fresh(said))
        self._forget_old()
        now = self._clock()
        for seq, key in keys.items():
            if upto.before < seq <= upto.seen and len(self._judged) < MOST_REMEMBERED:
                self._judged[key] = now
        if upto.seen > upto.before:
            self._judged_at = now
        self._boot, self._seen = said.boot_id, upto.seen

    def forget(self) -> None:
        """Something was cleared: what was judged before is new when it is said again."""
        self._judged.clear()

    def _fresh(self, said: wire.Report) -> list[wire_faults.KernelLine]:
        seen = self._seen if said.boot_id == self._boot else -1
        return [line for line in said.kernel_lines[:MAX_LINES] if seen < line.seq <= EXACT_MAX]

    def _read(self, boot: str, fresh: list[wire_faults.KernelLine]) -> Mapping[int, Key]:
        """Return what lines are about: those that were read before, and as many others as may be read now."""
        known = self._keys if boot == self._keys_boot else {}
        keys: dict[int, Key] = {}
        for line in fresh:
            if line.seq in known:
                keys[line.seq] = known[line.seq]
            elif self._reading.take_if_there(1):
                keys[line.seq] = _key(line)
        self._keys_boot, self._keys = boot, keys
        return keys

    def _forget_old(self) -> None:
        now = self._clock()
        self._judged = {key: at for key, at in self._judged.items() if now - at < AGAIN_AFTER_S}


def _key(line: wire_faults.KernelLine) -> Key:
    said = read(line.text)
    return (said.slot, said.code, said.verdict.value) if said is not None else ("", "", "")
