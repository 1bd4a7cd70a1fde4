"""A new release on trial: it works for real, watched by the old one, which takes over again when it dies.

The agent that updates becomes (by exec: the same process for systemd and for who started it by hand) the
watchdog of its successor, which runs from beside the installed file. Once the successor has said that it works it
is ended, its file takes the installed one's place in one rename, and the watchdog becomes the new agent by exec.
Whatever ends the watchdog before that rename leaves the old release installed; and the successor ends with it.

What one release says to another stays as it is: `run … --trial-fd N`, a socket; the successor writes one line
when it works, and ends when it reads the socket's end (docs/adr/0017).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from corral.agent import release
from corral.agent.records import forget, keep, recall
from corral.agent.state import StateError, StateFolder

log = logging.getLogger(__name__)

COMMAND, FD_OPTION = "try-update", "--trial-fd"
WORKS = b"works\n"
WORKS_WITHIN_S = 180.0
"""For a successor to say that it works: it looks at the machine first, which may take a while."""
ENDS_WITHIN_S = 60.0
_ENDING = (signal.SIGTERM, signal.SIGINT)


# -- the successor's side -----------------------------------------------------------------------


class OnTrial:
    """This process is the release on trial. Belongs to the loop."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    def watch(self, ended: Callable[[], object]) -> None:
        """Call `ended` when the watchdog has ended: the old release is about to start."""
        loop = asyncio.get_running_loop()

        def heard() -> None:
            loop.remove_reader(self._socket)
            ended()

        loop.add_reader(self._socket, heard)

    def works(self) -> None:
        """Tell the watchdog that this release works here."""
        with contextlib.suppress(OSError):
            self._socket.send(WORKS)


# -- the watchdog's side ------------------------------------------------------------------------


def begin(state: Path, arguments: Sequence[str]) -> NoReturn:
    """Become the watchdog of the release that stands beside this one. `arguments`: of the agent that this was."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # no handler outlives an exec
    _exec(release.python(_installed(), [COMMAND, str(state), *arguments]))


def main(arguments: Sequence[str]) -> int:
    """Watch over the successor's trial; then become the agent, the new one or the old. Returns when told to end."""
    signal.signal(signal.SIGHUP, lambda *_: None)
    state, agent = StateFolder(Path(arguments[0])), list(arguments[1:])
    program = _installed()
    with Stop() as stop:
        why = _try(program, agent, stop)
    if not stop.asked:
        if why:
            _failed(state, why)
        _reap()
        _exec(release.python(program, agent))
    with contextlib.suppress(StateError):
        forget(state)  # nothing failed: the agent that starts next is asked again
    return 0


def _installed() -> Path:
    program = release.installed()
    assert program is not None, "only an installed release is updated"
    return program


class Stop:
    """Hears that this process is to end, at any moment of the block; afterwards that ends it at once again."""

    def __enter__(self) -> Stop:
        self.heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        signal.set_wakeup_fd(self._told.fileno())
        for number in _ENDING:
            signal.signal(number, self._note)
        self.asked = False
        return self

    def __exit__(self, *_: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._told.close()
        self.heard.close()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def _try(program: Path, agent: list[str], stop: Stop) -> str:
    """Let the successor work, and put it in place if it does; return why not ("": it is in place, or `stop`)."""
    new = release.beside(program)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = release.python(new, [*agent, FD_OPTION, str(theirs.fileno())])
            try:
                successor = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
            except OSError as error:
                return f"the new release cannot be started: {error.strerror or error}"
        try:
            why = _judge(ours, successor, stop)
        finally:
            _end(successor)
    return why or ("" if stop.asked else _put_in_place(new, program))


def _judge(ours: socket.socket, successor: subprocess.Popen[bytes], stop: Stop) -> str:
    """Wait until the successor works or has died; return why it is not taken ("": it works, or `stop`)."""
    ready, _, _ = select.select([ours, stop.heard], [], [], WORKS_WITHIN_S)
    if not ready:
        return f"the new release did not come to work within {WORKS_WITHIN_S:.0f} s"
    if stop.heard in ready or ours.recv(len(WORKS)) == WORKS:
        return ""
    return f"the new release ended on its trial ({_how(successor)}); the agent's log says why"


def _how(successor: subprocess.Popen[bytes]) -> str:
    try:
        code = successor.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return "it closed its line"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _end(successor: subprocess.Popen[bytes]) -> None:
    """End the successor, gently at first; what runs on the machine goes on."""
    successor.terminate()
    try:
        successor.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        successor.kill()
        successor.wait()


def _put_in_place(new: Path, program: Path) -> str:
    """Replace the installed release in one step; return why that cannot be ("": it is done)."""
    try:
        new.replace(program)
        folder = os.open(program.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        return f"the new release cannot be put in place: {error.strerror or error}"
    return ""


def _failed(state: StateFolder, why: str) -> None:
    """Note why, for the old release to tell. What was noted when the trial began says that it failed anyway."""
    log.error("%s; the old release goes on", why)
    with contextlib.suppress(StateError):
        record = recall(state)
        if record is not None:
            keep(state, record.failed(why))


def _reap() -> None:
    """Forget children of the agent that this process was: nobody else waits for them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _exec(command: list[str]) -> NoReturn:
    logging.shutdown()
    os.execv(command[0], command)  # noqa: S606 (no shell: the command is this program's own)
