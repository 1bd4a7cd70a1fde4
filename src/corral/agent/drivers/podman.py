"""Containers by Podman (spec 40, "Running containers"): the driver that real machines use.

It keeps nothing in memory that it could not find again: containers carry labels; an
allocation's folder holds its disk, host key and log; networks are named by their ids. So
every call may be repeated after a crash of the agent, of Podman's service or of the machine.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corral.agent.drivers import cdi, containerlog, drive_mounts, etc_files, podman_spec, sshd, toolbox
from corral.agent.drivers.base import DriverError, Drives, Progress, Running, RuntimeInfo, RuntimeUnavailable, Started
from corral.agent.drivers.cgroups import Cgroups
from corral.agent.drivers.host import find, make_folder, read_text, remove_tree, wait_for, write_atomic
from corral.agent.drivers.networks import Attachment, Networks
from corral.agent.drivers.podman_containers import Container, Containers
from corral.agent.drivers.podman_images import Image, Images
from corral.agent.drivers.podman_service import PodmanService, hard_limits
from corral.agent.drivers.ports import connect_inside
from corral.agent.drivers.sessions import Sessions, check_sshd
from corral.agent.drivers.storage import Storage
from corral.agent.drivers.toolbox import Toolbox
from corral.protocol.messages import DesiredAllocation, Step

STATE_FILE = "allocation.json"


@dataclass(frozen=True)
class PodmanConfig:
    """Where one machine's driver keeps its things, and what it may use."""

    state_dir: Path
    machine: str
    """The machine's id: the label on its containers."""
    reserve_mib: int = 4096
    """Disk space that is never given to storage."""
    network: bool = True
    """False: containers have no network at all; ssh and ports work the same."""
    cdi_dirs: tuple[Path, ...] = cdi.HOST_DIRS
    subnet_pool: str = "10.213.0.0/16"
    """Each workspace's network is a /24 of it that no route of the host uses."""
    image_stores: tuple[Path, ...] = ()
    """Read-only image stores beside the own one."""


class PodmanDriver:
    """`Driver` on a Podman of the agent's own. Safe for many threads; one allocation's changes go one by one."""

    def __init__(self, config: PodmanConfig, drives: Drives | None = None) -> None:
        """`drives`: where drives are kept; None: nowhere on this machine."""
        for program in ("podman", "runc", "conmon"):
            find(program)
        # Mounts are told by their true paths.
        config = replace(config, state_dir=make_folder(config.state_dir).resolve())
        self._config, self._drives = config, drives
        self._service = PodmanService(config.state_dir, config.image_stores)
        self._storage = Storage(config.state_dir, config.reserve_mib)
        self._networks = Networks(config.state_dir, config.machine, config.subnet_pool)
        self._toolbox = Toolbox(config.state_dir)
        self._images = Images(
            self._service, config.state_dir, self._storage.image_share_mib(), config.reserve_mib, self._images_in_use
        )
        self._cgroups = Cgroups()
        self._containers = Containers(self._service, self._cgroups, config.machine)
        self._sessions = Sessions()
        self._stopping = threading.Event()
        self._followers: list[threading.Thread] = []
        self._locks: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()
        self._networks.collect()

    # -- looking -------------------------------------------------------------------------

    def info(self) -> RuntimeInfo:
        size, free = self._storage.capacity_mib()
        return RuntimeInfo(f"podman {self._service.version()}", self._storage.quota(), size, free)

    def list_running(self) -> Sequence[Running]:
        return [
            Running(
                allocation=c.allocation,
                machine=c.machine,
                container=c.id,
                running=c.running,
                exit_code=c.exit_code,
                oom_kills=self._oom_kills(c),
                gpus=c.gpus,
            )
            for c in self._containers.labelled(podman_spec.LABEL_MACHINE)
        ]

    def _find(self, allocation: str) -> Container | None:
        """Return the allocation's container. Errors: `DriverError` when it is another machine's, or the id is none."""
        self._storage.folder(allocation)
        return self._containers.of(allocation)

    def _running(self, allocation: str) -> Container:
        container = self._find(allocation)
        if container is None or not container.running:
            raise DriverError("the container is not running", retry=True)
        return container

    def _oom_kills(self, container: Container) -> int:
        """Return the kills in this container and in those that the allocation had before (their cgroups are gone)."""
        if container.machine != self._config.machine:
            return 0
        now = self._cgroups.oom_kills(container.pid) if container.running else 0
        state = self._state(container.allocation)
        kills = dict(state.get("oom_kills", {}))
        if now > kills.get(container.id, 0):
            kills[container.id] = now
            self._remember(container.allocation, oom_kills=kills)
        return sum(kills.values())

    # -- what an allocation's folder remembers -------------------------------------------

    def _state(self, allocation: str) -> dict[str, Any]:
        text = read_text(self._storage.folder(allocation) / STATE_FILE)
        return json.loads(text) if text else {}

    def _remember(self, allocation: str, **changes: object) -> None:
        with self._lock:
            folder = self._storage.folder(allocation)
            if folder.is_dir():
                state = {**self._state(allocation), **changes}
                write_atomic(folder / STATE_FILE, json.dumps(state).encode())

    @contextlib.contextmanager
    def _alone(self, allocation: str) -> Iterator[None]:
        with self._lock:
            lock = self._locks.setdefault(allocation, threading.RLock())
        with lock:
            yield

    # -- starting ------------------------------------------------------------------------

    def start(self, want: DesiredAllocation, progress: Progress) -> Started:
        with self._alone(want.id):
            container = self._find(want.id)
            try:
                started = self._adopt(want, container, progress) if container else None
                return started or self._start(want, progress)
            except DriverError as error:
                self._after_failure(want.id, error)
                raise

    def _after_failure(self, allocation: str, error: DriverError) -> None:
        """Leave nothing of a first start that failed for good; storage that was once in use is never removed here."""
        if isinstance(error, RuntimeUnavailable) or error.retry:
            return
        with contextlib.suppress(DriverError):
            if self._state(allocation).get("started"):
                self._remove_container(allocation)
            else:
                self.remove(allocation)

    def _adopt(self, want: DesiredAllocation, container: Container, progress: Progress) -> Started | None:
        """Return what runs already, verified; None (and the remains removed) when it does not run."""
        if not container.running:
            self._remove_container(want.id)
            return None
        progress(Step.STARTING, "the container runs already")
        return self._finish(want, container, progress)

    def _start(self, want: DesiredAllocation, progress: Progress) -> Started:
        specification = cdi.read(self._config.cdi_dirs) if want.gpus else {}
        cdi.check_known(specification, want.gpus)
        folder = self._storage.folder(want.id)
        with self._image(want, progress) as image:
            progress(Step.STORAGE, self._storage_line(want))
            make_folder(folder)
            self._remember(want.id, image=image.id)
        rootfs = self._storage.prepare(want.id, want.storage_mib, image.layers)
        sshd.SshFolder(folder).prepare()
        sshd.prepare_accounts(rootfs)
        progress(Step.STARTING, f"{want.vcpu} vCPU, {want.ram_mib} MiB of memory, {len(want.gpus)} GPUs")
        drives = self._prepared(want)
        drive_mounts.clear_links(rootfs, drives)
        network = self._attach(want)
        place = podman_spec.Place(
            rootfs=rootfs,
            folder=folder,
            toolbox=self._toolbox.path(),
            network=network,
            etc=etc_files.prepare(folder / "disk/etc", want.name, network.address if network else None),
            image_env=image.env,
            drives=drives,
            limits=hard_limits(),
        )
        self._create_and_start(want, place)
        return self._finish(want, self._running(want.id), progress)

    def _prepared(self, want: DesiredAllocation) -> dict[str, Path]:
        """Return the folders of its drives, in the data location of its first start."""
        if not want.drives:
            return {}
        if self._drives is None:
            raise DriverError("this machine keeps no drives", retry=True)
        location, folders = self._drives.drives(want, self._state(want.id).get("data_location", ""))
        self._remember(want.id, data_location=location)
        return folders

    def _image(self, want: DesiredAllocation, progress: Progress) -> contextlib.AbstractContextManager[Image]:
        """Hold the image: the one of the first start, or the one of that name, fetched if need be."""
        before = self._state(want.id).get("image")
        if before:
            return self._images.using(before, self._images.by_id)

        def fetch(name: str) -> Image:
            return self._images.fetch(name, lambda line: progress(Step.PULLING_IMAGE, line))

        return self._images.using(want.image, fetch)

    def _images_in_use(self) -> set[str]:
        """Return the ids of the images that allocations began from, whether they run or not."""
        return {str(image) for a in self._storage.allocations() if (image := self._state(a).get("image"))}

    def _storage_line(self, want: DesiredAllocation) -> str:
        enforced = "" if self._storage.enforced(want.id) else " (this host cannot enforce it)"
        return f"root file system of {want.storage_mib} MiB{enforced}"

    def _attach(self, want: DesiredAllocation) -> Attachment | None:
        return self._networks.attach(want.id, want.org, want.workspace) if self._config.network else None

    def _create_and_start(self, want: DesiredAllocation, place: podman_spec.Place) -> None:
        call, name = self._service.call, podman_spec.container_name(want.id)
        body = podman_spec.create_body(want, self._config.machine, place)
        self._service.ensure()
        service = self._service.pid()
        created = call("POST", "/containers/create", body=body)
        if not created.ok and "already in use" in created.error():
            # A call that was broken off left it: a container not started yet, or only its name in the store.
            self._remove_container(want.id)
            self._containers.delete(name)
            created = call("POST", "/containers/create", body=body)
        self._service.expect("creating the container", created, retry=self._service.pid() != service)
        started = call("POST", f"/containers/{name}/start")
        # A no after the service died halfway is about what that left: the next try clears it away first.
        self._service.expect("starting the container", started, 304, retry=self._service.pid() != service)

    def _finish(self, want: DesiredAllocation, container: Container, progress: Progress) -> Started:
        """Verify what runs; a container that has other GPUs than it should is removed at once."""
        progress(Step.VERIFYING, "looking at the GPUs inside and waiting for sshd")
        try:
            gpus = self._gpus_inside(want.gpus, container)
            drive_mounts.check(want.drives, container.pid)
        except DriverError:
            self._remove_container(want.id)
            raise
        self._write_keys(want, container)
        check_sshd(container.id)
        self._sessions.sweep(lambda: self._containers.processes(container))
        self._remember(want.id, started=True)
        host_key = sshd.SshFolder(self._storage.folder(want.id)).host_key()
        progress(Step.VERIFYING, f"sshd answers; GPUs inside: {', '.join(gpus) or 'none'}")
        return Started(container.id, gpus, host_key)

    def _gpus_inside(self, given: Sequence[str], container: Container) -> tuple[str, ...]:
        specification = cdi.read(self._config.cdi_dirs)
        cdi.check_known(specification, given)
        try:
            found = cdi.devices_in(Path(f"/proc/{container.pid}/root/dev"), specification)
        except OSError as error:
            raise DriverError(f"the container ended while it was verified: {error.strerror}", retry=True) from error
        return cdi.verify(specification, given, found)

    # -- changing and ending -------------------------------------------------------------

    def update(self, want: DesiredAllocation) -> None:
        container = self._find(want.id)
        if container is not None and container.running:
            self._write_keys(want, container)

    def _write_keys(self, want: DesiredAllocation, container: Container) -> None:
        """Let the keys in; their sessions see the environment of the container's first process."""
        process = Path(f"/proc/{container.pid}")
        try:
            # A start is answered a moment before the runtime's own process has become the keeper.
            wait_for(lambda: (process / "cmdline").read_bytes().startswith(toolbox.KEEPER[0].encode()), 5)
            block = (process / "environ").read_bytes()
        except OSError:
            block = b""
        pairs = (entry.partition("=") for entry in block.decode(errors="replace").split("\0") if "=" in entry)
        folder = sshd.SshFolder(self._storage.folder(want.id))
        folder.write_keys(want.authorized_keys, {name: value for name, _, value in pairs})

    def stop(self, allocation: str, grace_s: int) -> None:
        with self._alone(allocation):
            container = self._find(allocation)
            if container is None or not container.running:
                return
            self._oom_kills(container)
            self._containers.stop(container, grace_s)

    def remove(self, allocation: str) -> None:
        with self._alone(allocation):
            self._remove_container(allocation)
            self._storage.release(allocation)
            self._networks.release(allocation)
        with self._lock:
            self._locks.pop(allocation, None)

    def _remove_container(self, allocation: str) -> None:
        container = self._find(allocation)
        if container is not None:
            self._containers.remove(container)

    # -- streams -------------------------------------------------------------------------

    def log_tail(self, allocation: str, max_bytes: int) -> bytes:
        return containerlog.tail(self._storage.folder(allocation) / containerlog.NAME, max_bytes)

    def open_ssh(self, allocation: str) -> socket.socket:
        container = self._running(allocation)
        return self._sessions.open(container.id, lambda: self._containers.processes(container))

    def open_port(self, allocation: str, port: int) -> socket.socket:
        return connect_inside(self._running(allocation).pid, port)

    def open_logs(self, allocation: str, tail_lines: int) -> socket.socket:
        path = self._storage.folder(allocation) / containerlog.NAME
        stream, thread = containerlog.Follower(path, tail_lines, self._stopping).start()
        with self._lock:
            self._followers = [t for t in self._followers if t.is_alive()] + [thread]
        return stream

    def wipe(self) -> None:
        """Remove all that this driver ever made here (every allocation, the store, its folders), and close it."""
        running = {c.allocation for c in self._containers.labelled(podman_spec.LABEL_MACHINE)}
        for allocation in sorted(running.union(self._storage.allocations())):
            self.remove(allocation)
        self.close()
        for folder in (self._config.state_dir, self._service.run_dir):
            remove_tree(folder)

    def close(self) -> None:
        self._stopping.set()
        self._sessions.close()
        for thread in self._followers:
            thread.join()
        self._service.close()
