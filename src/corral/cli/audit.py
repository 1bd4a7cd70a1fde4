"""`corral audit`: who did what, through which door."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.journal_commands import TIME, TYPE, WHAT, WHO, draw, filters, to_filter, write
from corral.cli.output import column
from corral.cli.place import Place, at
from corral.cli.root import Command

_OF_SITE = ("types", "actor", "since", "until")
"""The filters that the site's own audit takes."""


@click.command(cls=Command)
@click.option("--site", "of_site", is_flag=True, help="The site's own audit (operators).")
@filters
@at("org", "workspace", "cluster")
def audit(place: Place, of_site: bool, limit: int, export: str | None, **given: Any) -> None:
    """Show who did what, newest last. Admins see their organisation's; operators the site's own with --site."""
    named = {**given, "workspace": place.workspace_name, "cluster": place.cluster_name}
    if of_site and (export or any(value for name, value in named.items() if name not in _OF_SITE)):
        raise click.UsageError("--site takes no filter but --limit, --type, --actor, --since and --until.")
    if export is not None:
        write(place.org.export_audit(to_filter(named), format=export))
        return
    want = to_filter(named)
    entries = place.corral.site.audit(want) if of_site else place.org.audit(want)
    draw(
        entries,
        limit,
        [TIME, TYPE, WHO, column("FROM", "address", drop=2), WHAT, column("REQUEST", "request_id", drop=3)],
    )
