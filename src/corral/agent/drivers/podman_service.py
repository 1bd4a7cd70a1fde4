"""The agent's own `podman system service`: started, found again, started anew after a kill -9.

It has its own store, its own run folder and its own containers.conf, so that nothing of the
host's Podman is seen or touched. Containers are children of conmon: they go on when the
service dies. The libpod API is used throughout; the Docker-compatible one ignores GPUs.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from corral.agent.drivers.base import DriverError, RuntimeUnavailable
from corral.agent.drivers.host import make_folder, missing, read_text, unmount, wait_for, write_atomic

API = "/v4.0.0/libpod"
START_DEADLINE_S = 15.0
RETRY_DEADLINE_S = 20.0
CALL_TIMEOUT_S = 120.0
PING_TIMEOUT_S = 5.0
HEARD_S = 5.0
"""A service that answered so lately is not asked whether it lives."""
NEVER = float("-inf")
NOFILE_LIMIT = 1 << 20
DEFAULT_PID_MAX = 32768


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 400

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> str:
        """Return Podman's own words for what went wrong."""
        try:
            return str(json.loads(self.body).get("message", ""))
        except (ValueError, AttributeError):
            return self.body.decode(errors="replace").strip()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def hard_limits() -> dict[str, int]:
    """Return the limits on open files and processes that this host lets a container have.

    Without CAP_SYS_RESOURCE a hard limit cannot be raised, so the host's own is the most;
    Podman moreover lowers its own number of processes to what the kernel can number.
    """
    pid_max = int(read_text(Path("/proc/sys/kernel/pid_max")).strip() or DEFAULT_PID_MAX)
    return {
        "nofile": _at_most(NOFILE_LIMIT, resource.RLIMIT_NOFILE),
        "nproc": _at_most(pid_max, resource.RLIMIT_NPROC),
    }


def _at_most(limit: int, which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


class PodmanService:
    """One store and the service over it. Safe for many threads.

    `state_dir` holds the store; sockets and what must not outlive a boot stand in a short
    folder under /run, because a unix socket's path has at most 108 characters.
    """

    def __init__(self, state_dir: Path, image_stores: tuple[Path, ...] = ()) -> None:
        digest = hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]
        self.run_dir = Path(f"/run/corral-{digest}")
        self.store = state_dir / "store"
        self._conf_dir = state_dir / "conf"
        self._networks = state_dir / "store-networks"
        self._image_stores = image_stores
        self._socket = self.run_dir / "podman.sock"
        self._pid_file = self.run_dir / "podman.pid"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._version = ""
        self._heard = NEVER
        self._write_configuration()

    def _write_configuration(self) -> None:
        for folder in (self.run_dir, self.store, self._conf_dir):
            make_folder(folder)
        limits = ", ".join(f'"{name}={n}:{n}"' for name, n in hard_limits().items())
        files = {
            "containers.conf": (
                f'[containers]\ndefault_ulimits = [{limits}]\nlog_driver = "k8s-file"\nbase_hosts_file = "none"\n'
                'host_containers_internal_ip = "none"\n\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'
                # Podman's usual locks are shared by all its stores on a host, and a new store frees them all.
                'events_logger = "file"\nlock_type = "file"\n'
                # What a pull downloads lies in the store too, where it is counted; not in /var/tmp.
                'image_copy_tmp_dir = "storage"\n'
            ),
            # So that nothing of the host's own file counts; what this store needs is on the command line.
            "storage.conf": f'[storage]\ndriver = "overlay"\ngraphroot = {json.dumps(str(self.store))}\n'
            f'runroot = "{self.run_dir}/run"\n',
        }
        for name, text in files.items():
            if read_text(self._conf_dir / name) != text:
                write_atomic(self._conf_dir / name, text.encode())

    def version(self) -> str:
        """Return the running service's version, e.g. "4.3.1". Podman takes long to tell, so it is asked once."""
        self.ensure()
        if not self._version:
            self._version = str(self.expect("asking for the version", self.call("GET", "/version")).json()["Version"])
        return self._version

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self._conf_dir / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._conf_dir / "storage.conf"),
        }

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `podman` on this store (always the same storage driver: another one hangs)."""
        stores = [part for store in self._image_stores for part in ("--storage-opt", f"overlay.imagestore={store}")]
        return [
            "podman", "--root", str(self.store), "--runroot", f"{self.run_dir}/run",
            "--tmpdir", f"{self.run_dir}/libpod", "--storage-driver", "overlay",
            "--network-config-dir", str(self._networks), *stores, *arguments,
        ]  # fmt: skip

    # -- the process ---------------------------------------------------------------------

    def ensure(self) -> None:
        """Have a service that answers, started now if need be; RuntimeUnavailable when there is none in time.

        Only who finds it silent waits for whoever else starts it.
        """
        if time.monotonic() - self._heard < HEARD_S or self._answers():
            return
        with self._lock:
            if self._answers():
                return
            if self._closed:
                raise RuntimeUnavailable("the agent is shutting down")
            if not wait_for(self._answers_or_is_started, START_DEADLINE_S):
                said = read_text(self.run_dir / "podman.log").strip().splitlines()
                raise RuntimeUnavailable(f"podman does not answer: {said[-1] if said else 'no output'}")

    def _answers_or_is_started(self) -> bool:
        """Tell whether the service answers; start it where none is on its way (it may be killed as it starts)."""
        if self._process is None or self._process.poll() is not None:
            self._end_process()
            self._spawn()
        return self._answers()

    def _answers(self) -> bool:
        try:
            return self._call("GET", "/_ping", None, PING_TIMEOUT_S).ok
        except OSError:
            return False

    def _spawn(self) -> None:
        make_folder(self.run_dir)
        self._version = ""
        self._socket.unlink(missing_ok=True)
        with (self.run_dir / "podman.log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.command("system", "service", "--time=0", f"unix://{self._socket}"),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.run_dir,  # conmon leaves a file where it stands when memory runs out
                    env=self.environment(),
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise RuntimeUnavailable(missing("podman").message) from error
        write_atomic(self._pid_file, str(self._process.pid).encode())

    def pid(self) -> int | None:
        """Return the process id of the service, also of one that an earlier agent started; None when it is dead."""
        text = read_text(self._pid_file).strip()
        if not text.isdigit():
            return None
        ours = str(self._socket).encode() in _command_line(int(text))
        return int(text) if ours else None

    def _end_process(self) -> None:
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            if not wait_for(lambda: self._ended(pid), 5):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)
            self._process = None
        self._pid_file.unlink(missing_ok=True)

    def _ended(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is not None
        return not _command_line(pid)

    def kill(self) -> None:
        """End the service at once, whatever it is at; the next call starts another."""
        with self._lock:
            self._heard = NEVER
            pid = self.pid()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._end_process()

    def close(self) -> None:
        """End the service; containers go on."""
        with self._lock:
            self._closed = True
            self._end_process()
            self._socket.unlink(missing_ok=True)
            # After each container's end its monitor runs podman once more, for a moment.
            wait_for(lambda: not self._helpers(), 10)
            # Podman mounts its store on itself; containers on root file systems of ours do not need that.
            with contextlib.suppress(DriverError):
                unmount(self.store / "overlay", 2)

    def _helpers(self) -> list[str]:
        """Return the process ids of other podman commands that work on this store."""
        store = f"\0{self.store}\0".encode()
        lines = ((p.name, _command_line(int(p.name))) for p in Path("/proc").iterdir() if p.name.isdigit())
        return [pid for pid, line in lines if store in line and line.split(b"\0")[0].endswith(b"podman")]

    # -- calls ---------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        """Do one call, again when the service died meanwhile; so every call must bear being repeated.

        Raises RuntimeUnavailable when the service stays silent, never for what it answers.
        """
        target = API + path + ("?" + urlencode(query) if query else "")
        end = time.monotonic() + RETRY_DEADLINE_S
        while True:
            self.ensure()
            try:
                return self._call(method, target, body, timeout_s)
            except TimeoutError as error:
                self._heard = NEVER
                raise RuntimeUnavailable(f"podman did not answer {method} {path} within {timeout_s:.0f} s") from error
            except (OSError, http.client.HTTPException) as error:
                self._heard = NEVER
                if time.monotonic() > end:
                    raise RuntimeUnavailable(f"podman broke off {method} {path} again and again: {error}") from error
                time.sleep(0.05)

    def expect(self, what: str, answer: Answer, *accepted: int, retry: bool = True) -> Answer:
        """Return the answer if it is good or one of the accepted statuses; else DriverError with Podman's words."""
        if answer.ok or answer.status in accepted:
            return answer
        raise DriverError(f"{what} failed: {answer.error()}", retry=retry)

    def _call(self, method: str, target: str, body: object, timeout_s: float) -> Answer:
        with self._exchange(method, target, body, timeout_s) as response:
            answer = Answer(response.status, response.read())
        self._heard = time.monotonic()
        return answer

    @contextlib.contextmanager
    def _exchange(
        self,
        method: str,
        target: str,
        body: object,
        timeout_s: float,
        opened: Callable[[socket.socket], None] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = UnixConnection(self._socket, timeout_s)
        try:
            if isinstance(body, dict):
                connection.request(method, target, json.dumps(body).encode(), {"Content-Type": "application/json"})
            else:
                connection.request(method, target, body=body)  # type: ignore[arg-type]  # a file or None: not a dict here
            if opened is not None:
                opened(connection.sock)
            yield connection.getresponse()
        finally:
            connection.close()

    def lines(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout_s: float,
        opened: Callable[[socket.socket], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the lines of a long answer as they come; `timeout_s` bounds each silence. Not repeated.

        `opened` is given the stream, for another thread to shut down.
        """
        self._heard = NEVER
        self.ensure()
        try:
            with self._exchange(method, f"{API}{path}?{urlencode(query)}", None, timeout_s, opened) as response:
                yield from response
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeUnavailable(f"podman broke off {method} {path}: {error}") from error

    def upload(self, path: str, query: Mapping[str, str], source: IO[bytes], timeout_s: float) -> Answer:
        """POST a whole file; its size must not change meanwhile. Not repeated."""
        self._heard = NEVER
        self.ensure()
        connection = UnixConnection(self._socket, timeout_s)
        headers = {"Content-Type": "application/x-tar", "Content-Length": str(os.fstat(source.fileno()).st_size)}
        try:
            connection.request("POST", f"{API}{path}?{urlencode(query)}", body=source, headers=headers)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise RuntimeUnavailable(f"podman broke off POST {path}: {error}") from error
        finally:
            connection.close()


def _command_line(pid: int) -> bytes:
    """Return the arguments of a living process, b"" for a dead or a zombie one."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
