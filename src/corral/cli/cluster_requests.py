"""`corral cluster request …`: asking the operator for a cluster of one's own, and what is shown of the answers."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.output import Column, age, column, emit, safe, say, state_style, table
from corral.cli.place import Place, at
from corral.cli.root import Command

REQUESTS = [
    column("ID", "id"),
    column("NAME", "name", flow=True),
    column("STATE", "state", style=state_style),
    Column("ANSWER", lambda row: answer_of(row), flow=True),
    column("BY", "created_by", drop=1),
    Column("AGE", lambda row: age(row["created_at"])),
    column("NOTE", "note", flow=True, drop=2),
]


def answer_of(row: dict[str, Any]) -> str:
    """Return what came of a request, in a few words."""
    return f"cluster {row['cluster']}" if row["cluster"] else str(row["answer"])


@click.command(cls=Command)
@click.argument("name")
@click.option("--note", default="", help="What it is for.")
@at("org")
def request(place: Place, name: str, note: str) -> None:
    """Ask the site's operator for a cluster of your organisation's own."""
    made = place.org.request_cluster(name, note)
    emit(made.raw, lambda: say(f"Asked, as {safe(made.id)}. The answer: corral cluster requests"))


@click.command(cls=Command)
@at("org")
def requests(place: Place) -> None:
    """What your organisation asked for, and the answers."""
    rows = [one.raw for one in place.org.cluster_requests()]
    emit(rows, lambda: table(rows, REQUESTS, "Nothing was asked for. Ask: corral cluster request NAME"))


@click.command(cls=Command)
@click.argument("id")
@at("org")
def withdraw(place: Place, id: str) -> None:
    """Take a request back that has no answer yet."""
    place.org.withdraw_cluster_request(id)
    emit({"id": id, "withdrawn": True}, lambda: say("Withdrawn."))
