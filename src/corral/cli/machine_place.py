"""`corral machine place`: where a machine is, and its pool, with who can use it before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corral.cli.output import emit, first_of, safe, say, shown
from corral.cli.place import Place, at
from corral.cli.root import Command

if TYPE_CHECKING:
    from corral.client.reservations import Placement

_LABELS = ("pool", "site", "rack", "fabric")


@click.command(cls=Command)
@click.argument("name")
@click.option("--pool", help="Decides who may use it. An empty one ('') is removed, as with the others.")
@click.option("--site", help="Where it is.")
@click.option("--rack")
@click.option("--fabric")
@click.option("--dry-run", is_flag=True, help="Only say who can use it now and after.")
@at("org", "cluster")
def place(place: Place, name: str, dry_run: bool, **labels: str | None) -> None:
    """Change where a machine is and which pool it is of; labels that are not named stay. Running work stays."""
    given = {key: value for key, value in labels.items() if value is not None}
    if not given:
        raise click.UsageError("Name what to change: --pool, --site, --rack, --fabric.")
    told = place.cluster.place(name, given, dry_run=dry_run)
    emit(told.raw, lambda: _draw(told))


def _draw(told: Placement) -> None:
    for label in _LABELS:
        before, after = getattr(told.before, label), getattr(told.after, label)
        if before != after:
            say(f"{label}: {shown(before)} -> {shown(after)}")
    if told.before == told.after:
        say("Nothing changes.")
    before = first_of(told.workspaces_before, told.workspaces_before_left_out)
    say(f"Can use it now: {before}" if told.dry_run else f"{safe(told.name)} is placed.")
    after = first_of(told.workspaces_after, told.workspaces_after_left_out)
    say(f"Can use it {'after' if told.dry_run else 'now'}: {after}")
    if told.stays:
        works = ", ".join(f"{safe(work.workspace)}/{safe(work.name)}" for work in told.stays)
        say(f"Stays, though its workspace can no longer use the machine: {works}")
    for window in told.reservations:
        say(f"Reserved for {safe(window.whom)} from {safe(window.raw['start'])} to {safe(window.raw['end'])}")
