"""Real Podman for tests: machines in temporary folders, tiny images, ssh into containers, and nothing left behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from corral.agent.drivers.base import Drives, Started
from corral.agent.drivers.host import mount_points, unmount
from corral.agent.drivers.podman import PodmanConfig, PodmanDriver
from corral.agent.images import BASE_IMAGE
from corral.protocol.messages import DesiredAllocation, Step

BUSYBOX = "localhost/busybox:latest"
PROGRAMS = ("podman", "runc", "conmon", "catatonit", "patchelf", "sshd", "ssh-keygen", "mkfs.ext4", "nft", "ip")

BRIDGE = """
import os, socket, sys, threading
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
def up():
    while data := os.read(0, 1 << 18):
        stream.sendall(data)
    stream.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := stream.recv(1 << 18):
    while data:
        data = data[os.write(1, data):]
os._exit(0)
"""
"""ssh's ProxyCommand: its input and output to a unix socket."""


def why_not() -> str:
    """Return why Podman cannot be used here, "" when it can."""
    if os.geteuid() != 0:
        return "Podman's tests need root"
    path = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
    lacking = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


@contextlib.contextmanager
def machines_folder(prefix: str) -> Iterator[Path]:
    """A short folder (unix sockets) for machines' state; skips, saying why, where Podman or root is missing."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def busybox() -> Path | None:
    """Return a busybox that needs no library, if this host has one (package busybox-static)."""
    found = shutil.which("busybox")
    return Path(found) if found and b"/lib64/ld-linux" not in Path(found).read_bytes()[:4096] else None


def silent(_step: Step, _line: str) -> None:
    """Progress that nobody hears."""


@dataclass
class Box:
    """One machine's state folder; drivers on it come and go as agents do."""

    state_dir: Path
    machine: str = field(default_factory=lambda: f"machine-{uuid.uuid4().hex[:8]}")
    image_stores: tuple[Path, ...] = ()
    network: bool = True
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    drives: Drives | None = None
    drivers: list[PodmanDriver] = field(default_factory=list)

    def driver(self) -> PodmanDriver:
        """Return a new driver, as an agent makes when it starts."""
        config = PodmanConfig(
            self.state_dir,
            self.machine,
            network=self.network,
            cdi_dirs=self.cdi_dirs,
            image_stores=self.image_stores,
        )
        self.drivers.append(PodmanDriver(config, self.drives))
        return self.drivers[-1]

    def folder(self, allocation: str) -> Path:
        return self.state_dir / "allocations" / allocation

    def clean(self) -> None:
        """Remove every container, mount, network and process that this machine's drivers made."""
        driver = self.drivers[-1] if self.drivers else self.driver()
        try:
            folder = self.state_dir / "allocations"
            for allocation in {r.allocation for r in driver.list_running()} | {
                p.name for p in folder.iterdir() if p.is_dir()
            }:
                driver.remove(allocation)
        finally:
            for each in self.drivers:
                each.close()
            self.drivers.clear()
            self._clean_by_force()

    def _clean_by_force(self) -> None:
        points = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        for point in reversed([p for p in points if p.startswith(f"{self.state_dir}/")]):
            unmount(Path(point))
        shutil.rmtree(run_dir(self.state_dir), ignore_errors=True)


def run_dir(state_dir: Path) -> Path:
    """Return the folder under /run that belongs to a state folder."""
    return Path(f"/run/corral-{hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]}")


def remains(box: Box) -> list[str]:
    """Return what is still on the host of a machine that should have nothing: mounts, processes, links, rules."""
    mounts = [
        p for p in mount_points(Path("/proc/self/mountinfo").read_text()) if p.startswith(f"{box.state_dir}/alloc")
    ]
    # Podman's own helpers that clean up after a container end a moment later; conmon and the keeper must be gone.
    return mounts + networks_left(box) + loops_left(box)


def networks_left(box: Box) -> list[str]:
    folder = box.state_dir / "networks"
    return [path.name for path in folder.glob("*.json")] if folder.exists() else []


def loops_left(box: Box) -> list[str]:
    backing = (p.read_text().strip() for p in Path("/sys/block").glob("loop*/loop/backing_file"))
    return [path for path in backing if path.startswith(str(box.state_dir))]


def import_busybox(driver: PodmanDriver, folder: Path, program: Path) -> None:
    """Put a pure busybox image into the driver's store."""
    archive = folder / "busybox.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(program, arcname="bin/busybox")
        for name in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                tar.addfile(link)
        for name in ("etc", "root", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    service = driver._service
    with archive.open("rb") as source:
        answer = service.upload("/images/import", {"reference": BUSYBOX}, source, 60)
    service.expect("importing busybox", answer)


def build_base(driver: PodmanDriver) -> None:
    """Put the base image, built from this host's packages, into the driver's store."""
    driver._images.fetch(BASE_IMAGE, lambda _line: None)


@dataclass(frozen=True)
class Key:
    private: Path
    public: str


def make_key(folder: Path, name: str = "key") -> Key:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    return Key(folder / name, (folder / f"{name}.pub").read_text().strip())


def desired(key: Key | None = None, **changes: Any) -> DesiredAllocation:
    """Return a small compute cluster to start."""
    small = DesiredAllocation(
        id=str(uuid.uuid4()),
        generation=1,
        stop=False,
        kind="compute_cluster",
        org="org-1",
        workspace="ws-1",
        workload="wl-1",
        name="dev",
        image=BUSYBOX,
        gpus=(),
        vcpu=1,
        ram_mib=128,
        storage_mib=64,
        authorized_keys=(key.public,) if key else (),
    )
    return replace(small, **changes)


def start(driver: PodmanDriver, want: DesiredAllocation) -> Started:
    return driver.start(want, silent)


class Ssh:
    """Plain OpenSSH into one allocation, bridged to `open_ssh` as the agent's tunnel does."""

    def __init__(self, driver: PodmanDriver, allocation: str, key: Key, folder: Path) -> None:
        self._driver = driver
        self._allocation = allocation
        self._key = key
        self._folder = folder
        self._path = Path(tempfile.mkdtemp(prefix="ssh-", dir="/tmp"), "s")
        self.known_hosts = self._path.with_name("known_hosts")
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(20)
        (folder / "bridge.py").write_text(BRIDGE)
        self._run(self._accept)

    def options(self) -> list[str]:
        """Return ssh's options; scp, sftp and rsync take them too."""
        settings = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": str(self.known_hosts),
            "LogLevel": "ERROR",
            "IdentitiesOnly": "yes",
            "ProxyCommand": f"{sys.executable} {self._folder}/bridge.py {self._path}",
        }
        pairs = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return ["-F", "/dev/null", "-i", str(self._key.private), *pairs]

    def run(self, command: str, *, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = ["ssh", *self.options(), "root@box", command]
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=60, check=False)

    def text(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def open(self, command: str) -> subprocess.Popen[bytes]:
        argv = ["ssh", *self.options(), "root@box", command]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        shutil.rmtree(self._path.parent, ignore_errors=True)

    def _run(self, target: Any, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, self._driver.open_ssh(self._allocation) as stream:
            up = self._run(_pump, client, stream)
            _pump(stream, client)
            # As the agent's tunnel: when one side is over, both are.
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            up.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 18):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def ssh(driver: PodmanDriver, allocation: str, key: Key, folder: Path) -> Iterator[Ssh]:
    """Yield an `Ssh` into the allocation; its threads end with the block."""
    connection = Ssh(driver, allocation, key, folder)
    try:
        yield connection
    finally:
        connection.close()
