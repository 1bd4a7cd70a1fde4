"""Before something ends: say what, and ask for the name."""

from __future__ import annotations

import sys

import click

from corral.cli.output import note, safe
from corral.client.errors import CorralError


def typed_name(what: str, name: str, *, yes: bool) -> None:
    """Go on only when the person types `name`, or said --yes. Errors: `CorralError` `NOT_CONFIRMED`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CorralError("NOT_CONFIRMED", f"This cannot be undone, and nobody is here to ask. Add --yes to {what}.")
    answer = click.prompt(f"Type {safe(name)} to {what}", default="", show_default=False, err=True)
    if answer.strip() != name:
        raise CorralError("NOT_CONFIRMED", "That is another name. Nothing was changed.")


def warn(lines: list[str]) -> None:
    for line in lines:
        note(line)
