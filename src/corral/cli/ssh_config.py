"""`corral ssh-config`: Host blocks, so that plain ssh, scp, sftp, rsync and IDEs work as they are (spec 20)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from corral.cli.output import say
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.cli.ssh import cluster_of, connection
from corral.client import ssh as openssh
from corral.client.errors import CorralError


@click.command("ssh-config", cls=Command)
@click.argument("names", nargs=-1)
@click.option("--print", "only_print", is_flag=True, help="Print the blocks; write nothing.")
@click.option("-i", "identity", type=click.Path(path_type=Path), help="Private key the blocks name.")
@at("org", "workspace")
def ssh_config(place: Place, names: Sequence[str], only_print: bool, identity: Path | None) -> None:
    """Write Host blocks for NAMES (default: all of the workspace), included from ~/.ssh/config."""
    wanted = list(names) or [one.name for one in place.workspace.compute_clusters()]
    blocks = [_block(place, name, identity) for name in wanted]
    text = "# Written by `corral ssh-config`; written anew each time.\n\n" + "\n".join(blocks)
    if only_print:
        sys.stdout.write(text)
        return
    file = openssh.folder() / "ssh_config"
    _write(file, text)
    included = _include(Path.home() / ".ssh" / "config", file)
    say(f"Wrote {len(blocks)} host(s) to {file}" + (", and included it from ~/.ssh/config." if included else "."))
    if wanted:
        say(f"Now `ssh {wanted[0]}`, scp, sftp, rsync and IDEs work as they are.")


def _block(place: Place, name: str, identity: Path | None) -> str:
    keys = [identity.absolute()] if identity else []
    if not keys:
        try:
            keys = openssh.local_keys(connection(place, name).fingerprints)
        except CorralError as error:
            if error.status == 404:
                raise
    return openssh.host_block(cluster_of(place, name), keys)


def _include(config: Path, file: Path) -> bool:
    """Add one Include line at the top of the user's ssh configuration; False when it is there."""
    line = f'Include "{file}"' if " " in str(file) else f"Include {file}"
    present = config.read_text() if config.exists() else ""
    if line in present.splitlines():
        return False
    # At the top: inside a Host block an Include would count for that host only.
    _write(config, f"{line}\n\n{present}" if present else f"{line}\n")
    return True


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = file.resolve()  # a linked configuration stays a link
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    new = target.with_name(f"{target.name}.corral-{os.getpid()}")
    new.write_text(text)
    new.chmod(mode)
    new.replace(target)
