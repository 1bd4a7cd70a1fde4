"""A whole Corral for tests: control plane and agents as real processes, real Podman, real ssh; always taken away.

with Stack(folder, images) as stack:
    machine = stack.add_machine()
    stack.create("dev", machine=machine.name)
    stack.ssh("dev", "hostname")
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.client import config
from corral.client import ssh as openssh
from corral.client.api import Corral
from corral.client.compute_models import ComputeDetails
from corral.client.errors import CorralError
from corral.client.login import parse_link, site_of, use_link
from tests.live_server import eventually
from tests.podman import BUSYBOX, Key, make_key

ORG, WORKSPACE = "acme", "research"
WITHIN_S = 60.0
"""How long a test waits for what must happen; never how long it sleeps."""


@dataclass
class Machine:
    """One agent process on its own state folder."""

    stack: Stack
    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    env: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """A command that runs the agent's, e.g. in a network namespace."""
    arguments: tuple[str, ...] = ()
    """Of `run`, each time it starts."""
    program: tuple[str, ...] = ("-m", "corral.agent.main")
    """What Python runs: this source, or an agent's one file."""

    def start(self) -> None:
        log = (self.folder.parent / f"{self.folder.name}.log").open("ab")
        command = [*self.prefix, sys.executable, *self.program, "run", "--state", str(self.folder)]
        for store in self.stack.image_stores:
            command += ["--image-store", str(store)]
        with log:
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.env},
            )

    def kill(self) -> None:
        """End the agent as a crash does (kill -9); what it started goes on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End the agent as its service manager does."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.kill()

    @property
    def log(self) -> str:
        file = self.folder.parent / f"{self.folder.name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def clean(self) -> None:
        """Remove everything the agent made on this host."""
        self.stop()
        command = [sys.executable, "-m", "corral.agent.main", "clean", "--state", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, f"{done.stderr}\n{self.log[-3000:]}"


class Stack:
    """See the module. `owner` is the organisation's owner, by the SDK; `corral()` runs the CLI as them."""

    def __init__(
        self,
        folder: Path,
        image_stores: Sequence[Path] = (),
        *,
        database: str = "",
        tls: str = "off",
        host: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.image_stores = tuple(image_stores)
        self.database = database or f"sqlite:///{folder}/site.db"
        self.machines: list[Machine] = []
        self.port = _free_port()
        self._tls, self._host = tls, host
        self._site: subprocess.Popen[bytes] | None = None
        self._ending = ExitStack()
        self.key: Key = make_key(folder)
        self.site_env: dict[str, str] = {}
        """Of the control plane, each time it starts."""
        self.env = {**os.environ, "CORRAL_CONFIG": str(folder / "config.json"), "HOME": str(folder)}

    def __enter__(self) -> Stack:
        try:
            link = self.start_site()
            assert link is not None
            self.url = link.partition("/login#")[0]
            self.operator = self._client(link, "operator")
            self.operator.create_org(ORG, "Acme")
            self.owner = self._client(self.operator.org(ORG).invite_owner().link or "", "owner")
            org = self.owner.org(ORG)
            org.create_workspace(WORKSPACE, "Research")
            self.cluster = org.use_hosted_cluster().slug
            org.workspace(WORKSPACE).set_access(self.cluster, ["*"])
            self.owner.add_ssh_key(self.key.public, "key")
            site = self.owner.transport.site
            config.save(
                config.Known().with_site(config.Site(site.url, site.token, site.ca, ORG, WORKSPACE)),
                self.folder / "config.json",
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with ExitStack() as ending:
                ending.callback(self.stop_site)
                for machine in self.machines:
                    ending.callback(machine.clean)
        finally:
            self._ending.close()

    # -- the control plane

    def start_site(self) -> str | None:
        """Start the control plane; returns its operator's link, if it is new."""
        command = [sys.executable, "-m", "corral", "site", "serve", "--database", self.database, "--tls", self._tls]
        command += ["--state-dir", str(self.folder / "site"), "--port", str(self.port)]
        command += ["--host", self._host]
        greeting = self.folder / "site.out"
        with (self.folder / "site.log").open("a") as log, greeting.open("w") as out:
            self._site = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.site_env},
            )
        new = not hasattr(self, "url")

        def said() -> bool:
            assert self._site is not None
            assert self._site.poll() is None, (self.folder / "site.log").read_text()[-3000:]
            return ("#corl_" if new else "answers at") in greeting.read_text()

        eventually(said, WITHIN_S)
        link = next((line for line in greeting.read_text().splitlines() if "#corl_" in line), None)
        return shlex.split(link)[2] if link else None

    @property
    def site_pid(self) -> int:
        assert self._site is not None
        return self._site.pid

    def kill_site(self) -> None:
        """End the control plane as a crash does (kill -9)."""
        assert self._site is not None
        self._site.kill()
        self._site.wait()

    def stop_site(self) -> None:
        if self._site is not None:
            self._site.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._site.wait(20)
            self._site.kill()
            self._site.wait()

    # -- people

    def _client(self, link: str, login: str) -> Corral:
        parsed = parse_link(link)
        site = site_of(parsed, self.owner.transport.site.ca if hasattr(self, "owner") else None)
        token = use_link(site, parsed.secret or "", login=login, name=login.title(), password=None).token
        client = Corral(site=config.Site(site.url, token, site.ca))
        self._ending.callback(client.close)
        return client

    def add_person(self, login: str, role: str = "member", *, part: str | None = "member") -> Corral:
        """Invite somebody into the organisation and the workspace; returns their client."""
        org = self.owner.org(ORG)
        client = self._client(org.invite(role).link or "", login)
        if part is not None:
            org.workspace(WORKSPACE).set_member(login, part)
        return client

    @property
    def workspace(self) -> Any:
        return self.owner.org(ORG).workspace(WORKSPACE)

    # -- machines

    def add_machine(
        self,
        *,
        labels: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> Machine:
        """Join and start an agent on this host; returns when its machine is Up."""
        made = self.owner.org(ORG).cluster(self.cluster).create_join_token(labels or {})
        folder = self.folder / f"agent-{len(self.machines)}"
        token = self.folder / f"token-{len(self.machines)}"
        token.write_text(made.token or "")
        command = [*prefix, sys.executable, "-m", "corral.agent.main", "join"]
        command += ["--url", self.url, "--token-file", str(token)]
        if self.owner.transport.site.ca:
            ca = self.folder / "ca.pem"
            ca.write_text(self.owner.transport.site.ca)
            command += ["--ca", str(ca)]
        done = subprocess.run([*command, "--state", str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        machine = Machine(self, done.stdout.split()[-1], folder, None, env or {}, tuple(prefix), tuple(arguments))
        self.machines.append(machine)
        machine.start()
        eventually(lambda: self.machine_state(machine.name) == "up", WITHIN_S)
        return machine

    def machine_state(self, name: str) -> str:
        return self.owner.org(ORG).cluster(self.cluster).machine(name).machine.state

    # -- compute clusters

    def create(self, name: str, *, active: bool = True, **asked: Any) -> ComputeDetails:
        """Create a small compute cluster of busybox; waits until it is Active."""
        small = {"image": BUSYBOX, "vcpu": 1, "ram_gib": 1, "storage_gib": 1, **asked}
        self.workspace.create_compute_cluster(name, **small)
        return self.until(name, "active") if active else self.show(name)

    def show(self, name: str) -> ComputeDetails:
        found: ComputeDetails = self.workspace.compute_cluster(name).show()
        return found

    def until(self, name: str, *states: str) -> ComputeDetails:
        """Wait until it is in one of the states; fails at once when it ended in another."""

        def reached() -> ComputeDetails | None:
            try:
                now = self.show(name)
            except CorralError as error:
                if error.status == 0 or error.status >= 500:
                    return None  # the control plane is down: that is what some tests are about
                raise
            ended = now.state in ("failed", "terminated")
            assert not ended or now.state in states, f"{name} is {now.state}: {now.reason}"
            return now if now.state in states else None

        return eventually(reached, WITHIN_S)  # type: ignore[return-value]

    def terminate(self, name: str) -> ComputeDetails:
        """Terminate it and wait until its machine has confirmed."""
        id = self.show(name).id
        self.workspace.compute_cluster(name).terminate()
        return self.until(id, "terminated", "failed")

    # -- ssh and the CLI

    def at(self, name: str) -> openssh.Cluster:
        return openssh.Cluster(self.url, ORG, WORKSPACE, name)

    def ssh_command(self, name: str, *remote: str, arguments: Sequence[str] = (), key: Path | None = None) -> list[str]:
        before = os.environ.get("CORRAL_CONFIG")
        os.environ["CORRAL_CONFIG"] = self.env["CORRAL_CONFIG"]
        try:
            flags = ["-F", "/dev/null", "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR", *arguments]
            return openssh.command(self.at(name), [key or self.key.private], flags, list(remote))
        finally:
            os.environ.pop("CORRAL_CONFIG") if before is None else os.environ.update(CORRAL_CONFIG=before)

    def ssh(self, name: str, *remote: str, **given: Any) -> subprocess.CompletedProcess[str]:
        command = self.ssh_command(name, *remote, **given)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=self.env, stdin=subprocess.DEVNULL
        )

    def said(self, name: str, *remote: str) -> str:
        """Return what a command inside says; fails when it fails."""
        done = self.ssh(name, *remote)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def open_ssh(self, name: str, *remote: str, arguments: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start an ssh that goes on; the caller ends it."""
        process = subprocess.Popen(
            self.ssh_command(name, *remote, arguments=arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )
        self._ending.callback(_end, process)
        return process

    def corral(self, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run the CLI as the owner."""
        return subprocess.run(
            [sys.executable, "-m", "corral", *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
            env=self.env,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
