"""A new release on trial: it works for real, watched by the old one, which takes over again when it dies.

The agent that updates becomes (by exec: the same process for systemd and for who started it by hand) the
watchdog of its successor, which runs from beside the installed file. Once the successor has said that it works it
is ended, its file takes the installed one's place in one rename, and the watchdog becomes the new agent by exec.
Whatever ends the watchdog before that rename leaves the old release installed; and the successor ends with it.

A successor that goes on and that no site answers has shown nothing: the old release asks by itself whether the site
would take a session (`door`), which tells a release that can open none from an outage.

What one release says to another stays as it is: `run … --trial-fd N`, a socket; the successor writes a line when it
goes on without an answer, and one when the site has answered; it ends when it reads the socket's end (docs/adr/0017).
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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from corral.agent import release
from corral.agent.door import Door, Knocks, knock
from corral.agent.records import forget, keep, recall
from corral.agent.state import StateError, StateFolder

log = logging.getLogger(__name__)

COMMAND, FD_OPTION = "try-update", "--trial-fd"
RUNS, WORKS = b"runs", b"works"
"""Lines: its loop goes on, and the site has not answered it yet; the site has acknowledged a report."""
COMES_WITHIN_S = 180.0
"""For a successor to say either: it looks at the machine first, which may take a while."""
KNOCK_EVERY_S, OPEN_FOR_S, SHUT_FOR_S = 15.0, 180.0, 180.0
"""When the site took sessions for so long, without a break, and answered nothing of the successor, it can open none;
when it took none for so long, that is no fault of the successor, which goes on."""
ENDS_WITHIN_S = 60.0
MOST_SAID = 256
"""Bytes that are read of it at once."""
NO_SESSION = (
    f"the site acknowledged nothing of the new release for {OPEN_FOR_S:.0f} s, while it took sessions of this machine; "
    "the agent's log says why"
)
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

    def runs(self) -> None:
        """Tell the watchdog that this release goes on, and that no site has answered it yet."""
        self._say(RUNS)

    def works(self) -> None:
        """Tell the watchdog that this release works here: the site has answered it."""
        self._say(WORKS)

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(line + b"\n")


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
        why = _try(Trial(program, agent, state), stop)
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


@dataclass(frozen=True)
class Trial:
    """What is tried: what stands beside `program`, run as the agent with these arguments."""

    program: Path
    agent: list[str]
    state: StateFolder


def _try(trial: Trial, stop: Stop) -> str:
    """Let the successor work, and put it in place if it does; return why not ("": it is in place, or `stop`)."""
    new = release.beside(trial.program)
    ours, theirs = socket.socketpair()
    with ours, Knocks(partial(knock, trial.state), KNOCK_EVERY_S) as knocks:
        with theirs:
            command = release.python(new, [*trial.agent, FD_OPTION, str(theirs.fileno())])
            try:
                successor = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
            except OSError as error:
                return f"the new release cannot be started: {error.strerror or error}"
        try:
            why = _judge(Line(ours, successor), knocks, stop)
        finally:
            _end(successor)
    return why or ("" if stop.asked else _put_in_place(new, trial.program))


class Line:
    """The successor's process, and what it says."""

    def __init__(self, ours: socket.socket, successor: subprocess.Popen[bytes]) -> None:
        self.ours, self.successor = ours, successor
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Return what it said since, in whole lines; None when it has ended."""
        said = self.ours.recv(MOST_SAID)
        *lines, rest = (self._rest + said).split(b"\n")
        self._rest = rest[-MOST_SAID:]
        return lines if said else None


def _judge(line: Line, knocks: Knocks, stop: Stop) -> str:
    """Wait for what shows whether the successor works; return why it is not taken ("": it is, or `stop`)."""
    door = Door()
    give_up: float | None = time.monotonic() + COMES_WITHIN_S
    while door.shut_for < SHUT_FOR_S:
        left = None if give_up is None else max(0.0, give_up - time.monotonic())
        ready, _, _ = select.select([line.ours, stop.heard, knocks.heard], [], [], left)
        if not ready:
            return f"the new release did not come to work within {COMES_WITHIN_S:.0f} s"
        said = line.read() if line.ours in ready else []
        if stop.heard in ready or (said and WORKS in said):
            return ""
        if said is None:
            return f"the new release ended on its trial ({_how(line.successor)}); the agent's log says why"
        if RUNS in said:
            give_up = None
            knocks.start()
        if knocks.heard in ready:
            door.seen(knocks.is_open(), time.monotonic())
        if door.open_for >= OPEN_FOR_S:
            return NO_SESSION
    log.warning("the site takes no session of this machine; the new release is not to blame, and goes on")
    return ""


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
