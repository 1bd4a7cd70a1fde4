"""`corral cluster`: the clusters an organisation uses, and the tokens with which machines join them."""

from __future__ import annotations

import click

from corral.cli.cluster_requests import request, requests, withdraw
from corral.cli.confirm import typed_name
from corral.cli.output import Column, age, column, details, emit, note, safe, say, shown, table, until, wants_json
from corral.cli.place import Place, at
from corral.cli.prices import prices
from corral.cli.root import Group
from corral.cli.updates import stop_update, update_agents, update_progress
from corral.client.cluster_models import Leaving
from corral.client.errors import CorralError
from corral.client.models import NewJoinToken

HOSTED = "default"
"""What the hosted cluster is called in an organisation that has no cluster yet."""


@click.group(cls=Group)
def cluster() -> None:
    """Clusters and join tokens."""


@cluster.command("use-hosted")
@at("org")
def use_hosted(place: Place) -> None:
    """Begin to use the site's hosted cluster; it is then ready for machines."""
    used = place.org.use_hosted_cluster()
    emit(
        used.raw,
        lambda: say(
            f"Your organisation uses the hosted cluster, as '{safe(used.slug)}'.\n"
            "Add a machine: corral cluster token create"
        ),
    )


@cluster.command("create-dedicated")
@click.argument("slug")
@click.option("--name", help="How it is shown. Default: the short name.")
@at("org")
def create_dedicated(place: Place, slug: str, name: str | None) -> None:
    """Make a cluster of one organisation's own (operators)."""
    made = place.org.create_dedicated_cluster(slug, name or slug)
    emit(made.raw, lambda: say(f"Made cluster '{safe(made.slug)}'."))


@cluster.command("list")
@at("org")
def list_clusters(place: Place) -> None:
    """The clusters your organisation uses."""
    rows = [one.raw for one in place.org.clusters()]
    offer = not wants_json() and place.org.hosted_offered()
    columns = [
        column("NAME", "slug"),
        column("SHOWN AS", "name"),
        Column("KIND", lambda row: "hosted" if row["hosted"] else "dedicated"),
        Column("MACHINES", _machines, right=True),
        column("UP", "up", right=True),
        column("DOWN", "down", right=True, drop=1),
        column("CORDONED", "cordoned", right=True, drop=1),
        column("GPUS", "gpus", right=True),
    ]

    def draw() -> None:
        table(rows, columns, "No cluster yet.")
        if offer:
            note("The site's hosted cluster is there to use: corral cluster use-hosted")

    emit(rows, draw)


def _machines(row: dict[str, object]) -> str:
    limit = row.get("machine_limit")
    return f"{row['machines']} of {limit}" if limit is not None else str(row["machines"])


@cluster.command()
@click.argument("name", required=False)
@at("org", "cluster")
def show(place: Place, name: str | None) -> None:
    """One cluster."""
    one = (place.org.cluster(name) if name else place.cluster).show()
    emit(
        one.raw,
        lambda: details(
            [
                ("name", one.slug),
                ("shown as", one.name),
                ("kind", "hosted" if one.hosted else "dedicated"),
                ("machines", _machines(one.raw)),
                ("up", one.up),
                ("down", one.down),
                ("cordoned", one.cordoned),
                ("GPUs", one.gpus),
                ("in use since", one.raw.get("joined_at")),
            ]
        ),
    )


@cluster.command()
@click.argument("name")
@click.argument("shown_as")
@at("org")
def rename(place: Place, name: str, shown_as: str) -> None:
    """Change how a cluster is shown; its short name never changes."""
    one = place.org.cluster(name).rename(shown_as)
    emit(one.raw, lambda: say(f"'{safe(one.slug)}' is now shown as '{safe(one.name)}'."))


@cluster.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name.")
@click.option("--dry-run", is_flag=True, help="Only say what it would come to.")
@at("org")
def remove(place: Place, name: str, yes: bool, dry_run: bool) -> None:
    """Take a cluster out of your organisation. Its machines stay enrolled, closed to new work.

    The hosted cluster comes back, with them, when it is used again; a dedicated one only from the operator: talk to
    them first.
    """
    told = place.org.cluster(name).would_leave()
    if dry_run:
        emit(told.raw, lambda: _draw_leaving(told))
        return
    if not yes:
        _draw_leaving(told, warn=True)
    typed_name("take the cluster out of the organisation", told.slug, yes=yes)
    left = place.org.cluster(name).leave()
    emit(left.raw, lambda: say(f"'{safe(left.slug)}' is no cluster of your organisation any more."))


def _draw_leaving(told: Leaving, *, warn: bool = False) -> None:
    tell = note if warn else say
    more = ", …" if told.machines > len(told.machine_names) else ""
    tell(f"Machines that stay enrolled: {told.machines} {shown(told.machine_names)}{more}".rstrip())
    tell(f"Unused join tokens that are revoked: {told.tokens}")
    running = ", ".join(f"{safe(work.workspace)}/{safe(work.name)}" for work in told.running)
    tell(f"Runs there: {running or 'nothing'}")
    if told.workspaces:
        tell(f"In the way: access of {shown(told.workspaces)}. Take it away: corral workspace access revoke")
    elif not told.hosted:
        tell("Only the operator gives a dedicated cluster back.")


for _command in (request, requests, withdraw):
    cluster.add_command(_command)


@cluster.group()
def token() -> None:
    """Join tokens: one machine joins with one."""


@token.command("create")
@click.option("--label", "-l", "labels", multiple=True, metavar="KEY=VALUE", help="Given to the machine; repeatable.")
@click.option("--pool", help="Short for --label pool=NAME.")
@click.option("--ttl", default=86400, show_default=True, metavar="SECONDS", type=int, help="60 to 604800.")
@at("org", "cluster", "workspace")
def create_token(place: Place, labels: tuple[str, ...], pool: str | None, ttl: int) -> None:
    """Make a join token and print the line to run, as root, on the machine.

    The line is a secret until it has been used. With --workspace, that workspace is granted the pool. The first
    machine of an organisation begins to use the hosted cluster.
    """
    wanted = dict(_label(text) for text in labels)
    if pool is not None:
        wanted["pool"] = pool
    made = _new_token(place, wanted, ttl)
    if made.install is None:
        place.cluster.revoke_join_token(made.id)
        raise CorralError("SECRET_LOST", "The token was made, but its secret was lost on the way. Run this again.")
    install = made.install

    def draw() -> None:
        note(f"Run this as root on the machine. It works for one machine, and expires {until(made.raw['expires_at'])}:")
        say(safe(install))
        if made.labels:
            note(f"It will carry: {shown(made.labels)}")

    emit(made.raw, draw)


def _new_token(place: Place, labels: dict[str, str], ttl: int) -> NewJoinToken:
    if place.workspace_name is not None:
        return place.workspace.create_join_token(labels, ttl, cluster=place.cluster_name)
    if place.cluster_name is None and next(place.org.clusters(), None) is None:
        return place.org.cluster(HOSTED).create_join_token(labels, ttl)
    return place.cluster.create_join_token(labels, ttl)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r}: write KEY=VALUE.", param_hint="--label")
    return key, value


@token.command("list")
@at("org", "cluster")
def list_tokens(place: Place) -> None:
    """The tokens that may still be used; never their secret."""
    rows = [one.raw for one in place.cluster.join_tokens()]
    columns = [
        column("ID", "id"),
        column("TOKEN", "public_id", drop=2),
        column("LABELS", "labels"),
        column("BY", "created_by"),
        Column("AGE", lambda row: age(row["created_at"])),
        Column("EXPIRES", lambda row: until(row["expires_at"])),
    ]
    emit(rows, lambda: table(rows, columns, "No unused join token."))


@token.command()
@click.argument("id")
@at("org", "cluster")
def revoke(place: Place, id: str) -> None:
    """Revoke an unused token, by its id."""
    place.cluster.revoke_join_token(id)
    emit({"id": id, "revoked": True}, lambda: say("Revoked."))


for command in (prices, update_agents, update_progress, stop_update):
    cluster.add_command(command)
