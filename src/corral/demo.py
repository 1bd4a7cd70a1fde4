"""`corral demo`: a whole site on this machine, with real parts: control plane, agent, Podman, ssh.

Everything it makes is in one folder and on loopback, and everything is taken away at the end.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import click

from corral.cli.output import gib, safe, say
from corral.cli.root import Command
from corral.client import config
from corral.client import ssh as openssh
from corral.client.api import Corral
from corral.client.errors import CorralError
from corral.client.login import parse_link, site_of, use_link
from corral.client.machine_models import AllocatedMachine

ORG, WORKSPACE, CLUSTER, PORT = "demo", "research", "first", 7443
COMMAND = 'echo "Hello from $(hostname)"; nproc; cat /etc/os-release | head -n 1; df -h / | tail -n 1'
START_WITHIN_S, STOP_WITHIN_S = 30.0, 60.0


T = TypeVar("T")


class DemoError(click.ClickException):
    """The demo cannot go on; says what to do."""


@click.command(cls=Command)
@click.option("--once", is_flag=True, help="Show it, then take everything away again.")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".corral/demo"),
    show_default=True,
    help="Folder for everything the demo makes.",
)
@click.option("--port", default=PORT, show_default=True, help="Port of the control plane; another one if it is taken.")
def demo(once: bool, state_dir: Path, port: int) -> None:
    """Run a control plane, join this machine, carve a compute cluster, run a command in it over ssh."""
    if os.geteuid() != 0:
        raise DemoError("The demo runs real containers and needs root. Run it again as root: sudo make demo")
    folder = state_dir.absolute()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as ending:
        try:
            ending.enter_context(_folder(folder))
            shown = _run(folder, port, ending)
            if not once:
                shown()
                signal.pause()
        except KeyboardInterrupt:
            say("\nStopping; the compute cluster is terminated and everything is removed.")
            # A second Ctrl-C must not leave containers behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("demo: ok")


def _run(folder: Path, port: int, ending: ExitStack) -> Callable[[], None]:
    """Go through the steps; whatever is started is ended by `ending`. Returns what to say at the end."""
    say(f"A whole site on this machine, in {folder}")
    url, link = ending.enter_context(_control_plane(folder, port))
    owner = ending.enter_context(_people(folder, url, link))
    machine = _join(folder, url, owner, ending)
    cluster = _carve(folder, url, owner, machine, ending)
    _show_ssh(cluster, folder / "id_ed25519")

    def shown() -> None:
        again = owner.org(ORG).login_link("you").link
        say("")
        say(f"The site answers at {url}")
        say("It goes on until Ctrl-C. In another terminal:")
        say(f"  . .venv/bin/activate; export CORRAL_CONFIG={folder / 'config.json'}")
        say(f"  corral ssh -i {folder / 'id_ed25519'} {CLUSTER}")
        say("  corral machine list")
        say("To log in with an own configuration (works once):")
        say(f"  corral login '{again}'")

    return shown


def _step(text: str) -> None:
    say(f"==> {text}")


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """A fresh folder; what an interrupted demo left there is taken away first."""
    if folder.exists():
        _step("removing what an earlier demo left")
        _remove_runtime(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700)
    os.environ["CORRAL_CONFIG"] = str(folder / "config.json")
    try:
        yield
    finally:
        _remove_runtime(folder)
        shutil.rmtree(folder)


def _remove_runtime(folder: Path) -> None:
    """Remove every container, mount and network that the demo's agent made."""
    state = folder / "agent"
    if not state.exists():
        return
    command = [sys.executable, "-m", "corral.agent.main", "clean", "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=STOP_WITHIN_S)
    if done.returncode != 0:
        raise DemoError(
            f"Could not remove the demo's containers: {safe(done.stderr[-500:])}\nRun again: {shlex.join(command)}"
        )


@contextmanager
def _control_plane(folder: Path, port: int) -> Iterator[tuple[str, str]]:
    """Run the control plane; yields its address and the one-time link of its operator."""
    _step("control plane on embedded SQLite")
    state = folder / "site"
    command = ["site", "serve", "--state-dir", str(state), "--port", str(_free(port))]
    with _process(command, folder / "site.log", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if "#corl_" in line:
                break
        else:
            raise DemoError(f"The control plane did not start: {_tail(folder / 'site.log')}")
        link = shlex.split(lines[-1])[2]
        url = link.partition("/login#")[0]
        say(f"    {url}")
        yield url, link


def _free(port: int) -> int:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def _people(folder: Path, url: str, link: str) -> Iterator[Corral]:
    """Make the operator, an organisation with its owner, and a workspace; yields the owner's client."""
    _step(f"people: operator, organisation {ORG}, its owner, workspace {WORKSPACE}")
    with Corral(url, _log_in(link, "operator")) as operator:
        operator.create_org(ORG, "Demo")
        invitation = operator.org(ORG).invite_owner().link or ""
    token = _log_in(invitation, "you")
    config.save(config.Known().with_site(config.Site(url, token, org=ORG, workspace=WORKSPACE)))
    with Corral(url, token) as owner:
        org = owner.org(ORG)
        org.create_workspace(WORKSPACE, "Research")
        hosted = org.use_hosted_cluster()
        org.workspace(WORKSPACE).set_access(hosted.slug, ["demo"])
        yield owner


def _log_in(link: str, login: str) -> str | None:
    """Use a one-time link as somebody new; returns their token."""
    parsed = parse_link(link)
    return use_link(site_of(parsed), parsed.secret or "", login=login, name=login.title(), password=None).token


def _join(folder: Path, url: str, owner: Corral, ending: ExitStack) -> AllocatedMachine:
    """Join this machine by a one-time token and run its agent until the end."""
    _step("agent on this machine, joined by a one-time token")
    org = owner.org(ORG)
    cluster = org.cluster(next(c.slug for c in org.clusters()))
    token = cluster.create_join_token({"pool": "demo"}).token
    file, state = folder / "token", folder / "agent"
    file.touch(mode=0o600)
    file.write_text(token or "")
    joining = [sys.executable, "-m", "corral.agent.main", "join", "--url", url, "--token-file", str(file)]
    done = subprocess.run([*joining, "--state", str(state)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"The machine could not join: {safe(done.stderr[-1000:])}")
    running = ["agent", "run", "--state", str(state)]
    process = ending.enter_context(_process(running, folder / "agent.log"))
    workspace = org.workspace(WORKSPACE)

    def up() -> AllocatedMachine | None:
        if process.poll() is not None:
            raise DemoError(f"The agent ended: {_tail(folder / 'agent.log')}")
        return next((m for m in workspace.machines() if m.state == "up"), None)

    machine = _wait(up, START_WITHIN_S, "the machine's first report", folder / "agent.log")
    node = next(m for m in cluster.machines() if m.name == machine.name)
    size = f"{node.vcpu} vCPU, {gib(node.ram_mib)} RAM, {gib(node.storage_mib)} storage, {node.gpus.total} GPUs"
    say(f"    {safe(machine.name)} is up: {size}")
    return machine


def _carve(folder: Path, url: str, owner: Corral, machine: AllocatedMachine, ending: ExitStack) -> openssh.Cluster:
    """Create a compute cluster and wait until it is Active, saying each step."""
    _step(f"compute cluster {CLUSTER}: 1 vCPU, 2 GiB, 2 GiB of storage")
    key = folder / "id_ed25519"
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f", str(key)]
    subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    owner.add_ssh_key(key.with_suffix(".pub").read_text(), "demo")
    workspace = owner.org(ORG).workspace(WORKSPACE)
    started = time.monotonic()
    workspace.create_compute_cluster(CLUSTER, machine=machine.name, vcpu=1, ram_gib=2, storage_gib=2, ssh_keys=["demo"])
    ending.callback(_terminate, owner)
    step = ""
    for one in workspace.compute_cluster(CLUSTER).watch():
        if one.state == "provisioning" and one.step != step:
            step = one.step
            say(f"    {time.monotonic() - started:5.1f} s  {step}")
        elif one.state != "provisioning":
            say(f"    {time.monotonic() - started:5.1f} s  {one.state}")
            if one.state != "active":
                raise DemoError(f"The compute cluster is {one.state}: {safe(one.reason)}")
    return openssh.Cluster(url, ORG, WORKSPACE, CLUSTER)


def _show_ssh(cluster: openssh.Cluster, key: Path) -> None:
    """Run a command over ssh, through the control plane, and show what it says."""
    _step("a command in it, over ssh through the control plane")
    say(f"    $ corral ssh {CLUSTER} -- {shlex.quote(COMMAND)}")
    done = subprocess.run(openssh.command(cluster, [key], [], [COMMAND]), capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        say(f"    {safe(line)}")
    if done.returncode != 0:
        raise DemoError(f"ssh failed ({done.returncode}): {safe(done.stderr[-1000:])}")


def _terminate(owner: Corral) -> None:
    """Terminate the compute cluster and wait until the machine has confirmed."""
    _step(f"terminating {CLUSTER}")
    one = owner.org(ORG).workspace(WORKSPACE).compute_cluster(CLUSTER)
    one = owner.org(ORG).workspace(WORKSPACE).compute_cluster(one.terminate().compute_cluster.id)
    one.wait_ended()


def _wait(check: Callable[[], T | None], within_s: float, what: str, log: Path) -> T:
    """Return the first true answer of `check`."""
    until = time.monotonic() + within_s
    while True:
        try:
            answer = check()
        except CorralError as error:
            raise DemoError(f"Waiting for {what}: {error.message}") from error
        if answer:
            return answer
        if time.monotonic() > until:
            raise DemoError(f"Waited {within_s:.0f} s for {what}. The agent's log ends: {_tail(log)}")
        time.sleep(0.1)


@contextmanager
def _process(arguments: Sequence[str], log: Path, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """Run `corral ARGUMENTS` in a session of its own (Ctrl-C is ours to pass on) until the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "corral", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return safe(" | ".join(lines[-5:])) or "(nothing)"
