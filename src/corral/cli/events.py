"""`corral events`: what happened to machines and workloads, listed or followed live."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.journal_commands import TIME, TYPE, WHAT, WHO, about, draw, filters, moment, to_filter, write
from corral.cli.output import note, print_json_line, safe, say, wants_json
from corral.cli.place import Place, at
from corral.cli.root import Command


@click.command(cls=Command)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now, until Ctrl-C.")
@click.option("--after", metavar="ID", help="With --follow: go on after this event's id, missing nothing.")
@filters
@at("org", "workspace", "cluster")
def events(place: Place, follow: bool, after: str | None, limit: int, export: str | None, **given: Any) -> None:
    """Show what happened to machines and workloads, newest last.

    With --json --follow: one JSON object a line; each has the id that --after takes.
    """
    want = to_filter({**given, "workspace": place.workspace_name, "cluster": place.cluster_name})
    if export is not None:
        if follow:
            raise click.UsageError("--export writes what there is: it cannot --follow.")
        write(place.org.export_events(want, format=export))
        return
    if not follow:
        draw(place.org.events(want), limit, [TIME, TYPE, WHO, WHAT])
        return
    for entry in place.org.follow_events(want, after=after):
        if entry.type == "reset":
            note("The journal was restored, or is younger than the event asked for: list again for what came between.")
        elif wants_json():
            print_json_line(entry.raw)
        else:
            say(f"{moment(entry.raw['at'])}  {safe(entry.type)}  {safe(entry.actor)}  {about(entry.raw)}")
