"""`corral ssh-key`: your SSH keys, to be attached to compute clusters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from corral.cli.output import Column, age, column, emit, note, safe, say, table
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.errors import CorralError

_PREFERRED = ("id_ed25519", "id_ecdsa", "id_rsa")
"""Which of several keys is taken when none was named."""


@click.group("ssh-key", cls=Group)
def ssh_key() -> None:
    """Your SSH keys."""


@ssh_key.command()
@click.argument("file", required=False)
@click.option("--name", help="What it is called here. Default: the key's comment.")
@at()
def add(place: Place, file: str | None, name: str | None) -> None:
    """Add the public key in FILE (- for stdin). Without FILE: yours in ~/.ssh; offers to make one."""
    text = sys.stdin.read() if file == "-" else _read(Path(file).expanduser() if file else _own_key())
    made = place.corral.add_ssh_key(text.strip(), name)
    emit(made.raw, lambda: say(f"Added '{safe(made.name)}' {safe(made.fingerprint)}"))


def _read(file: Path) -> str:
    if file.suffix != ".pub" and file.with_name(file.name + ".pub").is_file():
        file = file.with_name(file.name + ".pub")  # the private key was named: its public half is meant
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}.", param_hint="FILE") from error


def _own_key() -> Path:
    folder = Path.home() / ".ssh"
    found = [folder / f"{name}.pub" for name in _PREFERRED if (folder / f"{name}.pub").is_file()]
    found += sorted(path for path in folder.glob("id_*.pub") if path not in found)
    if found:
        note(f"Using {found[0]}")
        return found[0]
    return _generate(folder / "id_ed25519")


def _generate(private: Path) -> Path:
    if not sys.stdin.isatty() or not click.confirm(f"No key in ~/.ssh. Make {private}?", default=True, err=True):
        raise CorralError(
            "NO_SSH_KEY", "There is no key in ~/.ssh. Make one with `ssh-keygen -t ed25519`, or name a file."
        )
    private.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-f", str(private)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CorralError("NO_SSH_KEY", f"ssh-keygen did not make a key: {error}. Install openssh-client.") from error
    return private.with_name(private.name + ".pub")


@ssh_key.command("list")
@at()
def list_keys(place: Place) -> None:
    """Your keys."""
    rows = [one.raw for one in place.corral.ssh_keys()]
    columns = [
        column("NAME", "name"),
        Column("TYPE", lambda row: str(row["public_key"]).split(" ", 1)[0]),
        column("FINGERPRINT", "fingerprint"),
        Column("AGE", lambda row: age(row["created_at"])),
    ]
    emit(rows, lambda: table(rows, columns, "No key. Add yours: corral ssh-key add"))


@ssh_key.command()
@click.argument("name")
@at()
def remove(place: Place, name: str) -> None:
    """Remove a key, by name or id: it is detached everywhere, and what was opened with it closes."""
    place.corral.remove_ssh_key(name)
    emit({"name": name, "removed": True}, lambda: say(f"'{safe(name)}' is removed."))
