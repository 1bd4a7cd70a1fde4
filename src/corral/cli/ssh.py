"""`corral ssh NAME [-- COMMAND]`: the user's own ssh, through the control plane; says why when it cannot work."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.output import safe
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.client import ssh as openssh
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.compute_models import Connection

SSH_FAILED = 255
"""ssh's own exit code when it is ssh that failed, not the command."""


@click.command(cls=Command)
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-i", "identity", type=click.Path(path_type=Path), help="Private key to use.")
@click.option("-L", "local", multiple=True, metavar="PORT:HOST:PORT", help="Forward a local port, as ssh does.")
@click.option("-D", "dynamic", multiple=True, metavar="PORT", help="A SOCKS proxy into it, as ssh does.")
@click.option("-N", "no_command", is_flag=True, help="Run nothing: only forward ports.")
@click.option("-v", "verbose", count=True, help="Say what ssh does.")
@at("org", "workspace")
def ssh(
    place: Place,
    name: str,
    command: Sequence[str],
    identity: Path | None,
    local: Sequence[str],
    dynamic: Sequence[str],
    no_command: bool,
    verbose: int,
) -> int:
    """Open a shell in the compute cluster NAME, or run a command there: corral ssh NAME -- nvidia-smi"""
    cluster = cluster_of(place, name)
    arguments = ["-v"] * verbose + (["-N"] if no_command else [])
    for flag, values in (("-L", local), ("-D", dynamic)):
        for value in values:
            arguments += [flag, value]
    keys = [identity] if identity else _matching_keys(place, name)
    with _interrupts_are_sshs():
        code = subprocess.run(openssh.command(cluster, keys, arguments, list(command)), check=False).returncode
    if code == SSH_FAILED:
        _explain(place, name, identity)
    return code


def cluster_of(place: Place, name: str) -> openssh.Cluster:
    """Return the compute cluster as its path names it, asking the site only for what was not named."""
    org, workspace = place.names
    return openssh.Cluster(place.site.url, org, workspace, name)


def _matching_keys(place: Place, name: str) -> list[Path]:
    """Return local keys that are attached, when ssh would not find one by itself."""
    if any((Path.home() / ".ssh" / usual).exists() for usual in ("id_ed25519", "id_rsa", "id_ecdsa")):
        return []  # ssh offers these; _explain says so when none of them is attached
    with contextlib.suppress(CorralError):
        return openssh.local_keys(connection(place, name).fingerprints)
    return []


def connection(place: Place, name: str) -> Connection:
    """Ask the site how `name` is reached."""
    return place.workspace.compute_cluster(name).connection()


def _explain(place: Place, name: str, identity: Path | None) -> None:
    """Say which of the reasons of spec 20 it is, where the site knows."""
    try:
        found = connection(place, name)
    except CorralError as error:
        print(f"corral: {safe(error.message)}", file=sys.stderr)
        return
    if found.ssh != "ready":
        print(f"corral: {safe(found.why)}", file=sys.stderr)
        return
    keys = openssh.local_keys(found.fingerprints)
    if identity is None and keys:
        print(f"corral: the key {keys[0]} is attached, try: corral ssh -i {keys[0]} {name}", file=sys.stderr)
    elif identity is None and not openssh.agent_has(found.fingerprints):
        print(
            "corral: no private key on this computer matches the keys attached to "
            f"{name} ({', '.join(found.fingerprints)}). Add one of yours: corral ssh-key add, "
            f"then corral compute keys attach {name}.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _interrupts_are_sshs() -> Iterator[None]:
    """Leave Ctrl-C to ssh, which passes it on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
