"""Which kernel lines of a session are worth a transaction now (design decision 8).

A new fault is judged at once. One that a GPU says again and again is judged once a minute, with all that
came meanwhile: what is not confirmed comes again, so nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.domain.faults import MAX_LINES
from corral.domain.kernel_lines import read
from corral.protocol import messages as wire
from corral.usecases.gpu_evidence import Judged

AGAIN_AFTER_S = 60.0
MOST_REMEMBERED = 500
"""Slots and codes; beyond it the others wait until some are forgotten."""


class KernelNews:
    """Of one session."""

    __slots__ = ("_boot", "_clock", "_judged", "_seen")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._boot = ""
        self._seen = -1
        self._judged: dict[tuple[str, str], float] = {}

    def due(self, said: wire.Report) -> bool:
        """Return whether one of the report's lines should be judged now."""
        fresh = [line for line in said.kernel_lines[:MAX_LINES] if self._is_fresh(said, line)]
        return any(self._is_due(_key(line)) for line in fresh)

    def judged(self, said: wire.Report, upto: Judged) -> None:
        """Remember what of the report's lines was judged."""
        now = self._clock()
        self._judged = {key: at for key, at in self._judged.items() if now - at < AGAIN_AFTER_S}
        for line in said.kernel_lines[:MAX_LINES]:
            if upto.before < line.seq <= upto.seen and len(self._judged) < MOST_REMEMBERED:
                self._judged[_key(line)] = now
        self._boot, self._seen = said.boot_id, upto.seen

    def forget(self) -> None:
        """Something was cleared: what was judged before is new when it is said again."""
        self._judged.clear()

    def _is_fresh(self, said: wire.Report, line: wire.KernelLine) -> bool:
        return said.boot_id != self._boot or line.seq > self._seen

    def _is_due(self, key: tuple[str, str]) -> bool:
        at = self._judged.get(key)
        if at is None:
            return len(self._judged) < MOST_REMEMBERED
        return self._clock() - at >= AGAIN_AFTER_S


def _key(line: wire.KernelLine) -> tuple[str, str]:
    said = read(line.text)
    return (said.slot, said.code) if said is not None else ("", "")
