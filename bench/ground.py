"""What the parts of the bench measure: a real control plane with simulated machines, or with Podman on this host.

The processes are those of the end-to-end tests; everything is in one temporary folder and gone at the end.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import say
from bench.simulated import Machines
from corral.client.config import Site
from tests import podman, postgres
from tests.e2e.stack import ORG, WORKSPACE, Stack

API = f"/api/v1/orgs/{ORG}"
WORK = f"{API}/workspaces/{WORKSPACE}"


@contextmanager
def temporary() -> Iterator[Path]:
    """A short folder (unix sockets have short names)."""
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@dataclass
class Site1k:
    """A control plane with simulated machines that report. `machines` may be ended before the site is."""

    stack: Stack
    machines: Machines
    count: int
    database: str
    """sqlite | postgresql."""

    @property
    def login(self) -> Site:
        return self.stack.owner.transport.site

    @property
    def nodes(self) -> str:
        return f"{API}/clusters/{self.stack.cluster}/nodes"


@contextmanager
def simulated(count: int, *, tls: bool = False, postgresql: bool = False) -> Iterator[Site1k]:
    """A site with `count` machines of 8 GPUs, all of them connected."""
    with ExitStack() as ending:
        folder = ending.enter_context(temporary())
        database = ending.enter_context(_postgresql()) if postgresql else ""
        kind = "postgresql" if postgresql else "sqlite"
        stack = ending.enter_context(Stack(folder, database=database, tls="own" if tls else "off"))
        stack.operator.site.change(hosted_machine_limit=count)
        say(f"joining {count} simulated machines ({kind}, TLS {'on' if tls else 'off'})")
        machines = ending.enter_context(Machines(stack.owner.transport.site, ORG, stack.cluster, count))
        say(f"joined in {machines.started['joined_s']} s, connected in {machines.started['connected_s']} s")
        yield Site1k(stack, machines, count, kind)


@contextmanager
def _postgresql() -> Iterator[str]:
    """A server of the bench's own, every commit synced, with the schema in it."""
    with postgres.server(durable=True) as url:
        migrate = [sys.executable, "-m", "corral", "site", "migrate", "--database", url]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        yield url


@contextmanager
def images() -> Iterator[Path]:
    """An image store that holds the base image, built once for all parts."""
    reason = podman.why_not()
    if reason:
        raise RuntimeError(reason)
    with temporary() as folder:
        box = podman.Box(folder / "images")
        try:
            say("building the base image")
            podman.build_base(box.driver())
            yield box.state_dir / "store"
        finally:
            box.clean()


@contextmanager
def real(store: Path, *, tls: bool = False) -> Iterator[Stack]:
    """A control plane and an agent with Podman on this host."""
    with temporary() as folder, Stack(folder, [store], tls="own" if tls else "off") as stack:
        say(f"joining this host (Podman, TLS {'on' if tls else 'off'})")
        stack.add_machine()
        yield stack
