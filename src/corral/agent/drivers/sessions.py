"""One ssh connection: a fresh `sshd -i` in the container, its stream, and its end.

The OCI runtime starts it (`runc exec`), so it has the container's capabilities, seccomp
filter, namespaces and limits, and no port is needed. It holds the other end of a socket
pair: bytes go from kernel to kernel. When it ends, what its session left running is ended
too, but what the user detached (nohup, setsid, tmux) lives on, as with any sshd.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corral.agent.drivers import sshd, toolbox
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import SYSTEM_PATH, missing

log = logging.getLogger(__name__)

TAG = "CORRAL_SSH_SESSION"
EXEC_TIMEOUT_S = 30
GREETING_TIMEOUT_S = 10
GRACE_AFTER_HANGUP_S = 1.0
SETTLE_S = 0.25
"""What a connection left is looked at again after so long, before it is ended."""
_UNIX98_PTYS = range(136, 144)
"""Device majors of pseudo terminals."""
_SIGHUP_BIT = 1 << (signal.SIGHUP - 1)

Members = Callable[[], Iterable[int]]
"""Returns the processes of one container."""


@dataclass(frozen=True)
class Session:
    tag: str
    container: str
    members: Members


class Sessions:
    """The ssh connections that this agent opened, and one thread that sees them end.

    What they left is ended by a thread of the container's own, for all that ended meanwhile:
    a container that is slow to clear up holds up no other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, Session] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._due: dict[str, bool] = {}
        """Containers that are being swept -> whether a connection ended since that began."""
        self._sweepers: list[threading.Thread] = []
        self._closed = False

    def open(self, container: str, members: Members) -> socket.socket:
        """Return a stream to a fresh sshd in `container`."""
        session = Session(secrets.token_hex(8), container, members)
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                self._live[session.tag] = session
            pid = _start_sshd(container, session.tag, theirs)
            self._watch(session, pid)
        except BaseException:
            ours.close()
            with self._lock:
                self._live.pop(session.tag, None)
            raise
        finally:
            theirs.close()
        return ours

    def sweep(self, members: Members) -> None:
        """End what connections that are over left in a container, also those of an agent that died."""
        if self._leftovers(members):
            # `nohup job &` as a connection's last word: it may not have come to detach itself yet.
            time.sleep(SETTLE_S)
            end(self._leftovers(members), members)

    def _leftovers(self, members: Members) -> list[Process]:
        processes = [p for pid in members() if (p := _look(pid)) is not None]
        with self._lock:
            live = set(self._live)  # only now: a connection that was opened meanwhile is among them
        return leftovers(processes, live)

    def close(self) -> None:
        """End the threads; connections and what runs in them go on."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        self._wake_write.send(b"x")
        if thread is not None:
            thread.join()
        for sweeper in self._sweepers:
            sweeper.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Session):
                os.close(key.fd)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _watch(self, session: Session, pid: int) -> None:
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ssh-sessions", daemon=True)
                self._thread.start()
            try:
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, session)
            except ProcessLookupError:
                self._live.pop(session.tag, None)
                return
        self._wake_write.send(b"x")

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if isinstance(key.data, Session):
                    self._ended(key.data, key.fd)
                else:
                    self._wake_read.recv(4096)

    def _ended(self, session: Session, pidfd: int) -> None:
        with self._lock:
            self._selector.unregister(pidfd)
            os.close(pidfd)
            self._live.pop(session.tag, None)
            is_swept = session.container in self._due
            self._due[session.container] = True
        if not is_swept:
            sweeper = threading.Thread(target=self._sweep_while_due, args=(session,), name="ssh-sweep", daemon=True)
            self._sweepers = [t for t in self._sweepers if t.is_alive()] + [sweeper]
            sweeper.start()

    def _sweep_while_due(self, session: Session) -> None:
        while self._take_due(session.container):
            try:
                self.sweep(session.members)
            except (OSError, DriverError):
                pass  # a container that is gone has nothing left
            except Exception:
                log.exception("clearing up after ssh connections failed unexpectedly")

    def _take_due(self, container: str) -> bool:
        with self._lock:
            due = self._due.pop(container)
            if due:
                self._due[container] = False
            return due


def check_sshd(container: str) -> None:
    """Hear the greeting of an sshd in the container; DriverError with sshd's own words when there is none.

    This one is a child that is waited for: a process that ended and that nobody has waited
    for yet would hold up the container's own end.
    """
    ours, theirs = socket.socketpair()
    command = ["runc", "exec", "--cwd", "/", container, toolbox.SSHD, "-i", "-e", "-f", f"{sshd.MOUNT}/sshd_config"]
    with ours, tempfile.TemporaryFile() as said:
        with theirs:
            process = _spawn(command, theirs, said)
        ours.settimeout(GREETING_TIMEOUT_S)
        try:
            greeting = ours.recv(64)
        except OSError:
            greeting = b""
        ours.close()
        try:
            process.wait(GREETING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.seek(0)
        if not greeting.startswith(b"SSH-"):
            words = said.read(2000).decode(errors="replace").strip()
            raise DriverError(f"sshd in the container does not answer: {words or 'it says nothing'}", retry=True)


def _spawn(command: list[str], stream: socket.socket, said: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=stream.fileno(),
            stdout=stream.fileno(),
            stderr=said,
            env={**os.environ, "PATH": SYSTEM_PATH},
        )
    except FileNotFoundError as error:
        raise missing("runc") from error


def _start_sshd(container: str, tag: str, stream: socket.socket) -> int:
    """Start one sshd on `stream`; return its process id on the host."""
    with tempfile.TemporaryDirectory(prefix="corral-ssh-", dir="/run") as folder:
        pid_file = Path(folder, "pid")
        command = ["runc", "exec", "--detach", "--pid-file", str(pid_file), "--cwd", "/", container]
        command += [toolbox.SSHD, "-i", "-f", f"{sshd.MOUNT}/sshd_config"]
        command += ["-o", f"SetEnv={TAG}={tag}"]
        # A file, not a pipe: sshd inherits it and would keep a pipe open for its whole life.
        with Path(folder, "said").open("w+b") as said:
            process = _spawn(command, stream, said)
            try:
                status = process.wait(EXEC_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                process.kill()
                process.wait()
                raise DriverError("sshd could not be started in the container in time", retry=True) from error
            said.seek(0)
            words = said.read(2000).decode(errors="replace").strip()
        if status != 0:
            raise DriverError(f"sshd could not be started in the container: {words or status}", retry=True)
        return int(pid_file.read_text())


# -- what a connection leaves behind ------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """What of a process decides whether it outlives its ssh connection."""

    pid: int
    session: int
    tag: str
    on_connection: bool
    """Its input or output is a terminal, a socket or a pipe: it was not detached."""
    ignores_hangup: bool


def leftovers(processes: Collection[Process], live: Collection[str]) -> list[Process]:
    """Return the processes to end: of sessions whose connection is over, unless detached.

    A whole session (setsid) goes if one process of it still sits on its dead connection;
    who ignores the hang-up (nohup) stays. `live` are the tags of open connections.
    """
    dead = {p.session for p in processes if p.tag and p.tag not in live and p.on_connection}
    return [p for p in processes if p.session in dead and not p.ignores_hangup]


def end(doomed: Iterable[Process], members: Members) -> None:
    """Hang up on what closed connections left running; kill what does not go.

    The processes are held first and looked for then: a number that was used again meanwhile
    is no member, so nothing outside the container is ever signalled.
    """
    held: dict[int, int] = {}
    try:
        for process in doomed:
            with contextlib.suppress(ProcessLookupError):
                held[process.pid] = os.pidfd_open(process.pid)
        inside = set(members())
        pidfds = [fd for pid, fd in held.items() if pid in inside]
        _signal(pidfds, signal.SIGHUP, signal.SIGCONT)
        deadline = time.monotonic() + GRACE_AFTER_HANGUP_S
        waiting = list(pidfds)
        while waiting and time.monotonic() < deadline:
            waiting = [fd for fd in waiting if not _exited(fd)]
            time.sleep(0.02)
        _signal(waiting, signal.SIGKILL)
    finally:
        for fd in held.values():
            os.close(fd)


def _signal(pidfds: Iterable[int], *signals: signal.Signals) -> None:
    for fd in pidfds:
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)


def _exited(pidfd: int) -> bool:
    with selectors.PollSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        return bool(selector.select(0))


def _look(pid: int) -> Process | None:
    """Return what is known of a process, None when it is gone. All of it was written by the tenant: only compared."""
    folder = Path("/proc", str(pid))
    try:
        return Process(
            pid=pid,
            session=os.getsid(pid),
            tag=_tag((folder / "environ").read_bytes()),
            on_connection=any(_on_connection(folder / "fd" / str(fd)) for fd in range(3)),
            ignores_hangup=_ignores_hangup((folder / "status").read_text(errors="replace")),
        )
    except OSError:
        return None


def _tag(environ: bytes) -> str:
    prefix = f"{TAG}=".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return ""


def _on_connection(fd: Path) -> bool:
    try:
        status = fd.stat()
    except OSError:
        return False
    is_pty = stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in _UNIX98_PTYS
    return is_pty or stat.S_ISSOCK(status.st_mode) or stat.S_ISFIFO(status.st_mode)


def _ignores_hangup(status: str) -> bool:
    for line in status.splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) & _SIGHUP_BIT)
    return False
