"""`corral reservation`: machines kept for some workspaces, or for nobody, over a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.cli.local_time import Zone, moment, zone
from corral.cli.output import Column, column, details, emit, first_of, safe, say, shown, state_style, table
from corral.cli.place import Place, at
from corral.cli.root import Group

if TYPE_CHECKING:
    from corral.client.reservations import Effect, ReservationPreview

F = TypeVar("F", bound=Callable[..., Any])
NAMED = 20
"""Machines named one by one; more are counted."""


@click.group(cls=Group)
def reservation() -> None:
    """Reservations: machines kept for some workspaces, or for nobody."""


def _in_zone(command: F) -> F:
    return click.option("--tz", metavar="ZONE", help="Whose clocks, such as Europe/Berlin. Default: this machine's.")(
        command
    )


@reservation.command()
@click.option("--machine", "-m", "machines", multiple=True, metavar="NAME", help="Reserve this machine; repeatable.")
@click.option("--pool", metavar="NAME", help="Reserve every machine that carries this pool, later ones too.")
@click.option("--from", "start", metavar="TIME", help="Local time: '2026-03-01 12:00'. Default: now.")
@click.option("--to", "end", metavar="TIME", required=True, help="Local time; until before this.")
@click.option("--for", "workspaces", multiple=True, metavar="WORKSPACE", help="For this one; repeatable. None: nobody.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown to whoever waits.")
@_in_zone
@click.option("--dry-run", is_flag=True, help="Only say what it would cover, whom it keeps out, what is against it.")
@at("org", "cluster")
def create(place: Place, start: str | None, end: str, tz: str | None, dry_run: bool, **given: Any) -> None:
    """Reserve machines. Without --for it is for nobody: maintenance. What runs there goes on.

    Times without an offset are local: by --tz, or by this machine's clock.
    """
    where = zone(tz)
    begins = moment(start, where, "--from") if start is not None else datetime.now(timezone.utc)
    window = begins, moment(end, where, "--to")
    which = {"pool": given["pool"], "nodes": given["machines"], "workspaces": given["workspaces"]}
    if dry_run:
        told = place.cluster.reservations.preview(*window, **which)
        emit(told.raw, lambda: _draw_preview(told, where))
        return
    made = place.cluster.reservations.create(*window, **which, reason=given["reason"])
    effect = place.cluster.reservations.show(made.id).effect

    def draw() -> None:
        say(f"Reserved for {_whom(made.workspaces)} from {where.shown(made.start)} to {where.shown(made.end)}.")
        say(f"id: {safe(made.id)}")
        _draw_effect(effect, where)

    emit(made.raw, draw)


@reservation.command("list")
@click.option("--state", type=click.Choice(["upcoming", "active", "past"]), help="Default: those that are not over.")
@click.option("--pool", metavar="NAME", help="Of this pool, or of a machine that carries it.")
@click.option("--machine", metavar="NAME", help="Covering this machine.")
@_in_zone
@at("org", "cluster")
def list_reservations(place: Place, state: str | None, pool: str | None, machine: str | None, tz: str | None) -> None:
    """The cluster's reservations, soonest first."""
    where = zone(tz)
    rows = [one.raw for one in place.cluster.reservations.list(state, pool=pool, machine=machine)]
    columns = [
        column("ID", "id"),
        column("STATE", "state", style=state_style),
        Column("FROM", lambda row: _time(row["start"], where)),
        Column("TO", lambda row: _time(row["end"], where)),
        Column("MACHINES", _which, flow=True),
        Column("FOR", lambda row: _whom(row["workspaces"]), drop=1),
        column("WHY", "reason", flow=True, drop=2),
    ]
    emit(
        rows, lambda: table(rows, columns, "No reservation. Make one: corral reservation create --to TIME --pool NAME")
    )


@reservation.command()
@click.argument("id")
@_in_zone
@at("org", "cluster")
def show(place: Place, id: str, tz: str | None) -> None:
    """One reservation: what it covers now, and the work that was there before and goes on."""
    where = zone(tz)
    found = place.cluster.reservations.show(id)
    one = found.reservation

    def draw() -> None:
        details(
            [
                ("id", one.id),
                ("state", one.state),
                ("from", where.shown(one.start)),
                ("to", where.shown(one.end)),
                ("pool", one.pool.pool if one.pool else None),
                ("machines by name", one.nodes),
                ("for", _whom(one.workspaces)),
                ("why", one.reason),
                ("made by", one.created_by),
            ]
        )
        _draw_effect(found.effect, where)

    emit(found.raw, draw)


@reservation.command()
@click.argument("id")
@click.option("--dry-run", is_flag=True, help="Only say what would be let in again.")
@at("org", "cluster")
def remove(place: Place, id: str, dry_run: bool) -> None:
    """Remove a reservation. What waited for its end is tried at once."""
    if dry_run:
        told = place.cluster.reservations.would_remove(id)
        emit(told.raw, lambda: say(f"Would let in again: {_kept_out(told.effect)}"))
        return
    gone = place.cluster.reservations.remove(id)
    raw = gone.raw if gone is not None else {"removed": True}
    emit(raw, lambda: say("Removed." if gone is None else f"Removed. Let in again: {_kept_out(gone.effect)}"))


def _kept_out(effect: Effect) -> str:
    return first_of(effect.kept_out, effect.kept_out_left_out)


def _draw_preview(told: ReservationPreview, where: Zone) -> None:
    say(f"From {where.shown(told.start)} to {where.shown(told.end)}")
    _draw_effect(told.effect, where)
    for one in told.conflicts:
        what = shown(one.machines) if one.machines else f"pool {safe(one.pool.pool if one.pool else '')}"
        say(
            f"Conflict: {safe(one.id)} has {what} for {_whom(one.workspaces)} "
            f"from {where.shown(one.start)} to {where.shown(one.end)}" + (f": {safe(one.reason)}" if one.reason else "")
        )


def _draw_effect(effect: Effect, where: Zone) -> None:
    machines = len(effect.machines) + effect.machines_left_out
    more = machines - len(effect.machines[:NAMED])
    named = shown(effect.machines[:NAMED]) + (f" and {more} more" if more and effect.machines else "")
    say(f"Machines: {machines}" + (f" ({named})" if effect.machines else ""))
    say(f"Kept out: {_kept_out(effect)}")
    if not effect.goes_on and not effect.goes_on_left_out:
        return
    left_out = f", and {effect.goes_on_left_out} more" if effect.goes_on_left_out else ""
    say(f"Was there before, does not end in time and goes on{left_out}:")
    rows = [work.raw for work in effect.goes_on]
    table(
        rows,
        [
            column("MACHINE", "machine"),
            Column("WORK", lambda row: f"{row['workspace']}/{row['name']}"),
            column("STATE", "state", style=state_style),
            column("GPUS", "gpus", right=True),
            Column("ENDS BY", lambda row: _time(row["must_end_by"], where) if row["must_end_by"] else "no time limit"),
        ],
        "Work of other workspaces.",
    )


def _time(text: str, where: Zone) -> str:
    return where.shown(datetime.fromisoformat(text.replace("Z", "+00:00")))


def _which(row: dict[str, Any]) -> str:
    pool = [f"pool {row['pool']['pool']}"] if row["pool"] else []
    named = [*pool, *row["nodes"][:NAMED]]
    return f"{row['machines']}: {shown(named)}"


def _whom(workspaces: Sequence[str]) -> str:
    return shown(list(workspaces)) if workspaces else "nobody"
