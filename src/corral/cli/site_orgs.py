"""`corral site …`: what the operator does for and about organisations: clusters, requests, limits, break-glass."""

from __future__ import annotations

import click

from corral.cli.cluster_requests import answer_of
from corral.cli.confirm import typed_name
from corral.cli.output import Column, age, column, emit, safe, say, state_style, table, until
from corral.cli.place import Place, at
from corral.cli.root import Command


@click.command(cls=Command)
@at()
def clusters(place: Place) -> None:
    """The dedicated clusters of the site: whose, what they have, and which were left."""
    rows = [one.raw for one in place.corral.site.clusters()]
    columns = [
        column("ID", "id"),
        column("ORGANISATION", "org"),
        column("NAME", "slug"),
        column("SHOWN AS", "name", drop=1),
        column("MACHINES", "machines", right=True),
        column("UP", "up", right=True),
        column("GPUS", "gpus", right=True),
        Column("LEFT", lambda row: f"{age(row['left_at'])} ago" if row["left_at"] else ""),
    ]
    emit(rows, lambda: table(rows, columns, "No dedicated cluster. Make one: corral cluster create-dedicated NAME"))


@click.command("give-back", cls=Command)
@click.argument("id")
@click.argument("slug")
@click.option("--name", help="How it is shown. Default: the short name.")
@at("org")
def give_back(place: Place, id: str, slug: str, name: str | None) -> None:
    """Give a dedicated cluster back to the organisation that left it, with its machines."""
    made = place.org.create_dedicated_cluster(slug, name, id=id)
    emit(made.raw, lambda: say(f"Given back as '{safe(made.slug)}', with {made.machines} machines."))


@click.command("delete-cluster", cls=Command)
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask for the id.")
@at()
def delete_cluster(place: Place, id: str, yes: bool) -> None:
    """Delete a dedicated cluster that its organisation has left and that has no machine."""
    typed_name("delete the cluster", id, yes=yes)
    place.corral.site.delete_cluster(id)
    emit({"id": id, "deleted": True}, lambda: say("Deleted."))


@click.command("cluster-requests", cls=Command)
@at()
def cluster_requests(place: Place) -> None:
    """What organisations ask for; open requests first."""
    rows = [one.raw for one in place.corral.site.cluster_requests()]
    columns = [
        column("ID", "id"),
        column("ORGANISATION", "org"),
        column("NAME", "name", flow=True),
        column("STATE", "state", style=state_style),
        Column("ANSWER", answer_of, flow=True, drop=1),
        column("BY", "created_by", drop=2),
        Column("AGE", lambda row: age(row["created_at"])),
        column("NOTE", "note", flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No request."))


@click.command(cls=Command)
@click.argument("id")
@click.option("--slug", help="Make the cluster, with this short name.")
@click.option("--name", help="How it is shown. Default: as it was asked for.")
@click.option("--decline", metavar="WHY", help="Make none, and say why.")
@at()
def answer(place: Place, id: str, slug: str | None, name: str | None, decline: str | None) -> None:
    """Answer a request for a cluster, once: --slug makes it, --decline says why not."""
    site = place.corral.site
    if decline is not None and slug is None and name is None:
        done = site.decline_cluster_request(id, decline)
    elif slug is not None and decline is None:
        done = site.answer_cluster_request(id, slug, name)
    else:
        raise click.UsageError("Give either --slug (and perhaps --name), or --decline.")
    emit(done.raw, lambda: say(f"{safe(done.org)}: {safe(done.state)} {safe(done.cluster or '')}".rstrip() + "."))


@click.command(cls=Command)
@click.argument("machines", type=int, required=False)
@click.option("--default", "default", is_flag=True, help="The site's limit holds again.")
@at("org")
def limit(place: Place, machines: int | None, default: bool) -> None:
    """Set how many machines an organisation may have on the hosted cluster."""
    if (machines is None) != default:
        raise click.UsageError("Give a number of machines, or --default.")
    set_to = place.org.set_machine_limit(machines)
    taken = f"{set_to.enrolled} machines and {set_to.tokens} unused join tokens count"
    emit(set_to.raw, lambda: say(f"{safe(place.org.name)}: up to {set_to.in_force} machines; {taken}."))


@click.command("break-glass", cls=Command)
@click.option("--reason", required=True, help="Why: the organisation's owners and admins read it.")
@click.option("--ttl", default=3600, show_default=True, metavar="SECONDS", type=int, help="60 to 28800.")
@at("org")
def break_glass(place: Place, reason: str, ttl: int) -> None:
    """Open an organisation's data to yourself, for reading. Each look stands in its audit.

    End it when you are done: corral org end-look ID
    """
    look = place.org.break_glass(reason, ttl)
    emit(
        look.raw,
        lambda: say(
            f"You may read what an admin of '{safe(place.org.name)}' reads until {until(look.raw['expires_at'])}.\n"
            f"Done earlier? corral org end-look --org {safe(place.org.name)} {safe(look.id)}"
        ),
    )
