"""`corral machine remove`: what it stops is said first, and the name is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import click

from corral.cli.confirm import typed_name, warn
from corral.cli.output import emit, first_of, safe, say
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.client.machine_models import Removal

FOLLOWS = "On first contact it is told, and stops."


@click.command(cls=Command)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also while work runs there: it stops, as its restart policy says.")
@click.option("--yes", is_flag=True, help="Do not ask for the name.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@at("org", "cluster")
def remove(place: Place, name: str, force: bool, yes: bool, dry_run: bool) -> None:
    """Remove a machine for ever: its credential dies at once. It comes back only with a new install line."""
    told = place.cluster.would_remove(name)
    if dry_run:
        emit(told.raw, lambda: _draw(told))
        return
    if not told.running or force:
        warn(_warnings(told))
        typed_name("remove the machine", told.name, yes=yes)
    gone = place.cluster.remove(name, force=force)
    emit(gone.raw, lambda: _say_gone(gone))


def _warnings(told: Removal) -> list[str]:
    lines = []
    if told.stopped:
        lines.append(f"This stops: {_named(told.stopped)}.")
    if told.placed_again:
        lines.append(f"Placed again elsewhere, without what it had stored: {_named(told.placed_again)}.")
    if told.lost:
        lines.append(f"Ends as lost: {_named(told.lost)}.")
    if told.state == "down":
        lines.append(f"{safe(told.name)} is down: what runs there may run until it is heard of again. {FOLLOWS}")
    return lines


def _draw(told: Removal) -> None:
    say(f"Runs on it: {_named(told.stopped) or 'nothing'}")
    for line in _warnings(told)[bool(told.stopped) :]:
        say(line)
    say(f"May use it: {first_of(told.workspaces, told.workspaces_left_out)}")
    _say_uninstall(told, "Once it is removed, take")


def _say_gone(gone: Removal) -> None:
    say(f"{safe(gone.name)} is removed. Its drive copies are forgotten, not deleted.")
    if gone.placed_again:
        say(f"Waits for another machine: {_named(gone.placed_again)}.")
    if gone.lost:
        say(f"Lost: {_named(gone.lost)}.")
    if gone.state == "down":
        say(f"It is down: what runs there may run until it is heard of again. {FOLLOWS}")
    _say_uninstall(gone, "Take")


def _say_uninstall(told: Removal, take: str) -> None:
    if told.uninstall:
        say(f"{take} the agent off it: run there, as root:")
        say(told.uninstall)


def _named(works: Sequence[str]) -> str:
    return ", ".join(safe(work) for work in works)
