"""An agent as install.sh puts it: one file in a folder of its own, started by hand; always ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from corral.agent.state import CA, MACHINE, Machine, StateFolder
from corral.server.artefact import PYZ
from tests.live_server import eventually

ENDS_WITHIN_S = 60.0


@dataclass
class Installed:
    """A machine that has joined, and its agent's file."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Each leads a session of its own."""

    @property
    def program(self) -> Path:
        return self.folder / "opt" / PYZ

    @property
    def beside(self) -> Path:
        return self.folder / "opt" / ".corral-agent-update"

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.folder / "state")

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")

    def start(self, *program: str) -> None:
        """Start it (None: the installed file) in a session of its own, so that all it starts can be ended."""
        command = [sys.executable, *(program or (str(self.program),)), "run", "--state", str(self.state.path)]
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--driver", "sim"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(self.process)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """End it as a crash does: this process only, what it started is left."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def others(self) -> list[int]:
        """Return the processes that live in its session beside itself."""
        return [pid for pid in _session(self.pid) if pid != self.pid]

    def stop(self) -> int:
        """End it as its service manager does; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(ENDS_WITHIN_S)

    def end(self) -> None:
        """Take away all that runs of it."""
        for process in self.started:
            for pid in _session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        eventually(lambda: not any(_session(process.pid) for process in self.started))


@contextmanager
def installed(folder: Path, program: Path, machine: Machine, key: str, ca: str = "") -> Iterator[Installed]:
    """Yield a machine with this agent's file, which is not started yet."""
    made = Installed(folder)
    made.program.parent.mkdir(parents=True)
    shutil.copy(program, made.program)
    made.state.make()
    made.state.write_text("key", key + "\n")
    made.state.write(MACHINE, machine)
    if ca:
        made.state.write_text(CA, ca)
    try:
        yield made
    finally:
        made.end()


def _session(leader: int) -> list[int]:
    """Return the processes of a session that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.name))
    return found
