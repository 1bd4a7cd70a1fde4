"""The GPUs once seen on this machine, kept in the agent's state folder: how a missing one is noticed after a reboot."""

from __future__ import annotations

import json
from pathlib import Path

from corral.agent.inventory.files import read_text, write_atomically
from corral.protocol import codec
from corral.protocol.messages import Gpu


class KnownGpus:
    """In memory and in one small file, which is written only when a GPU came, went or moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.gpus = _load(path)
        self._written: tuple[Gpu, ...] | None = self.gpus

    def remember(self, gpus: tuple[Gpu, ...]) -> str:
        """Keep `gpus`; return why they could not be written ("" = they are)."""
        self.gpus = gpus
        if gpus == self._written:
            return ""
        try:
            write_atomically(self._path, json.dumps({"gpus": codec.to_plain(gpus)}, indent=1))
        except OSError as error:
            return error.strerror or type(error).__name__
        self._written = gpus
        return ""


def _load(path: Path) -> tuple[Gpu, ...]:
    """Return the GPUs in the file; none when it is missing or not ours: the next reading finds those present."""
    try:
        rows = json.loads(read_text(path.parent, path.name))["gpus"]
        return tuple(codec.from_plain(Gpu, row) for row in rows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
