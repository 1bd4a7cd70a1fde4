"""The note of a probe process that outlives its agent: a new agent must not start a second one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

from corral.agent.inventory.files import read_text, to_int, write_atomically


class PidFile:
    """Holds pid and start time of one process, so that a pid used again is not mistaken for it."""

    def __init__(self, path: Path, root: Path = Path("/")) -> None:
        self._path = path
        self._root = root

    def write(self, pid: int) -> None:
        """Note `pid`. A folder that cannot be written costs only the check after the agent's next start."""
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps({"pid": pid, "started": _start_ticks(self._root, pid)}))

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def alive(self) -> int | None:
        """Return the pid of the noted process while it lives."""
        try:
            note = json.loads(read_text(self._path.parent, self._path.name))
            pid, started = int(note["pid"]), note["started"]
        except (ValueError, TypeError, KeyError):
            return None
        return pid if started is not None and _start_ticks(self._root, pid) == started else None

    def terminate(self) -> None:
        """Send SIGTERM to the noted process while it lives."""
        pid = self.alive()
        if pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)


def _start_ticks(root: Path, pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None when it is gone or a zombie."""
    # The second field is the command in brackets and may itself hold spaces and brackets.
    fields = read_text(root, f"proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return to_int(fields[19])
