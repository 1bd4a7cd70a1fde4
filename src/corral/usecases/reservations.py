"""Reserving machines: made, previewed, listed, shown, removed (spec 10, "Reservations").

Nobody's work is ended by a reservation. What was there before goes on, and is named. Everything that placement
judges by changes under the tenancy's lock, so nothing lands in a window once it has been answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import ids
from corral.domain import reservations as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.ids import shown
from corral.domain.reservations import Asked, Given, State
from corral.domain.workloads import STOP_GRACE
from corral.store import fleet, reserved
from corral.store import machines as machine_rows
from corral.store import reservations as rows
from corral.store.reserved import Covered, Seer, Stays
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import clusters
from corral.usecases.context import Context

SHOWN = 1_000
"""Machines, and workloads, that a reservation's page names; more are counted."""
CONFLICTS_TOLD = 10
MACHINES_TOLD = 20
"""Of each conflict."""
TOUCHED_AT_ONCE = 5_000


@dataclass(frozen=True)
class Reservation:
    """`nodes`: the machines named that are enrolled and that the caller may know of. `machines`: how many it covers
    now. `workspaces`: short names, none: nobody's work."""

    id: str
    pool: str | None
    nodes: Sequence[str]
    machines: int
    start: datetime
    end: datetime
    workspaces: Sequence[str]
    reason: str
    state: State
    created_by: str
    created_at: datetime


@dataclass(frozen=True)
class Work:
    """A workload on a covered machine. `must_end_by` None: it has no time limit."""

    machine: str
    workspace: str
    name: str
    kind: str
    state: str
    gpus: int
    must_end_by: datetime | None


@dataclass(frozen=True)
class Effect:
    """Which machines, by name; what of others than those it is for runs there and goes on into the window; which
    workspaces that may use the machines are kept out. `…_left_out`: how many more there are."""

    machines: Sequence[str]
    machines_left_out: int
    goes_on: Sequence[Work]
    goes_on_left_out: int
    kept_out: Sequence[str]
    kept_out_left_out: int


@dataclass(frozen=True)
class Conflict:
    """Another reservation that has some of the machines for some of the time. `machines`: the first of those."""

    id: str
    start: datetime
    end: datetime
    workspaces: Sequence[str]
    reason: str
    pool: str | None
    machines: Sequence[str]


@dataclass(frozen=True)
class Preview:
    """What a reservation would be, change and stand against; nothing was changed."""

    asked: Asked
    effect: Effect
    conflicts: Sequence[Conflict]


@dataclass(frozen=True)
class Details:
    reservation: Reservation
    effect: Effect


@dataclass(frozen=True)
class Wanted:
    """Which reservations to list. `state` None: those that are not over."""

    state: State | None = None
    pool: str | None = None
    machine: str | None = None


@dataclass(frozen=True)
class _Resolved:
    """What was asked for, with the ids of what it names."""

    asked: Asked
    covered: Covered
    workspaces: Mapping[str, str]
    """Short names by id."""


# --- made and removed


def create(ctx: Context, cluster: str, given: Given) -> Reservation:
    """Reserve machines. Errors: `INVALID_RESERVATION`, `INVALID_REQUEST`, `INVALID_LABEL`, `WORKSPACE_NOT_FOUND`,
    `NODE_NOT_FOUND`, `RESERVATION_CONFLICT`; `CONFLICT` when there are as many as may be."""
    asked = rules.asked(given, ctx.now)
    cluster_id = _locked(ctx, cluster)
    what = _resolved(ctx, cluster_id, asked)
    _check_room(ctx, cluster_id)
    conflicts = _conflicts(ctx, what)
    if conflicts:
        raise _conflict(conflicts)
    touch(ctx.tx, what.covered)
    id = ctx.new_id()
    values = {"id": id, "cluster_id": cluster_id, "pool": asked.pool, "reason": asked.reason}
    window = {"starts_at": asked.start, "ends_at": asked.end, "created_by": ctx.user.id}
    rows.add(ctx.tx, ctx.scope, {**values, **window}, rows.For(what.covered.named, what.workspaces))
    row = _row(ctx, cluster_id, id)
    after = told(ctx.tx, ctx.scope, row)
    ctx.record("cluster.reservation.created", _subject(ctx, cluster_id), reservation=id, before=None, after=after)
    return _built(ctx, cluster_id, [row])[0]


def preview(ctx: Context, cluster: str, given: Given) -> Preview:
    """Say what a reservation would cover and whom it would keep out; changes nothing.

    Errors: those of `create` but `RESERVATION_CONFLICT` and `CONFLICT`: what stands against it is told.
    """
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    what = _resolved(ctx, cluster_id, rules.asked(given, ctx.now))
    window = what.asked.start, what.asked.end
    return Preview(what.asked, _effect(ctx, what.covered, what.workspaces, window), _conflicts(ctx, what))


def remove(ctx: Context, cluster: str, id: str, *, dry_run: bool = False) -> Details:
    """Remove a reservation; return it as it was, with whom it kept out. Errors: `NOT_FOUND`; `CONFLICT` when it is
    over: then it keeps nobody out any more."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"] if dry_run else _locked(ctx, cluster)
    row = _row(ctx, cluster_id, id)
    gone = _details(ctx, row)
    if gone.reservation.state is State.PAST:
        raise Refusal(
            "CONFLICT", f"That reservation was over at {rules.utc(row['ends_at'])}: nothing is to be removed."
        )
    if not dry_run:
        touch(ctx.tx, reserved.covered_by(ctx.tx, ctx.scope, row))
        rows.remove(ctx.tx, ctx.scope, row["id"])
        data = {"reservation": row["id"], "before": told(ctx.tx, ctx.scope, row), "after": None}
        ctx.record("cluster.reservation.removed", _subject(ctx, cluster_id), **data)
    return gone


def _locked(ctx: Context, cluster: str) -> str:
    """Return the id of a cluster that the organisation uses, its tenancy locked."""
    fleet.lock(ctx.tx, ctx.scope, clusters.find(ctx, cluster)["cluster_id"])
    return str(clusters.find(ctx, cluster)["cluster_id"])


def _resolved(ctx: Context, cluster_id: str, asked: Asked) -> _Resolved:
    theirs = reserved.workspaces_called(ctx.tx, ctx.scope, _possible(asked.workspaces))
    for slug in asked.workspaces:
        if slug not in theirs:
            text = f"There is no workspace {shown(slug)} in this organisation. Check the short name."
            raise Refusal("WORKSPACE_NOT_FOUND", text, field="workspaces")
    named = reserved.machines_called(ctx.tx, ctx.scope, cluster_id, _possible(asked.nodes))
    for name in asked.nodes:
        if name not in named:
            raise _no_machine(name, "nodes")
    covered = Covered(ctx.scope, cluster_id, asked.pool, sorted(named.values()))
    return _Resolved(asked, covered, {id: slug for slug, id in theirs.items()})


def _possible(names: Sequence[str]) -> list[str]:
    """Return those that can be names at all: a database would stumble over some others."""
    return [name for name in names if ids.SLUG.fullmatch(name)]


def _no_machine(name: str, where: str) -> Refusal:
    return Refusal("NODE_NOT_FOUND", f"There is no machine {shown(name)} in this cluster. Check the name.", field=where)


def _check_room(ctx: Context, cluster_id: str) -> None:
    if rows.count_live(ctx.tx, ctx.scope, cluster_id) >= rules.MAX_LIVE:
        raise Refusal(
            "CONFLICT",
            f"This cluster has {rules.MAX_LIVE} reservations that are not over, as many as may be. Remove some; "
            "or reserve several machines, or a pool, by one.",
        )


# --- conflicts


def _conflicts(ctx: Context, what: _Resolved) -> list[Conflict]:
    window = what.asked.start, what.asked.end
    found = reserved.overlapping(ctx.tx, what.covered, window, CONFLICTS_TOLD)
    theirs = rows.workspaces_of(ctx.tx, ctx.scope, [row["id"] for row in found])
    return [
        Conflict(
            row["id"],
            row["starts_at"],
            row["ends_at"],
            list(theirs.get(row["id"], {}).values()),
            row["reason"],
            row["pool"],
            reserved.common(ctx.tx, what.covered, reserved.covered_by(ctx.tx, ctx.scope, row), MACHINES_TOLD),
        )
        for row in found
    ]


def _conflict(conflicts: Sequence[Conflict]) -> Refusal:
    first = conflicts[0]
    why = f" ({first.reason})" if first.reason else ""
    has = ", ".join(first.machines) if first.machines else f"pool {first.pool}"
    more = f", and {len(conflicts) - 1} more in details" if len(conflicts) > 1 else ""
    return Refusal(
        "RESERVATION_CONFLICT",
        f"Reservation {first.id}{why} has {has} for {rules.whom(first.workspaces)} from {rules.utc(first.start)} to "
        f"{rules.utc(first.end)}{more}. Choose another time or other machines, or remove it first.",
        reservations=[
            {
                "id": one.id,
                "start": rules.utc(one.start),
                "end": rules.utc(one.end),
                "workspaces": list(one.workspaces),
                "reason": one.reason,
                "pool": {"pool": one.pool} if one.pool else None,
                "machines": list(one.machines),
            }
            for one in conflicts
        ],
    )


# --- seen


def listed(
    ctx: Context, cluster: str, want: Wanted, after: tuple[datetime, str] | None, limit: int
) -> Sequence[Reservation]:
    """Return reservations, soonest first (those that are over: latest first). Errors: `NOT_FOUND`, `NODE_NOT_FOUND`."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    machine = _seen_machine(ctx, cluster_id, want.machine) if want.machine is not None else None
    found = rows.listed(ctx.tx, ctx.scope, cluster_id, rows.Wanted(want.state, want.pool, machine), after, limit)
    return _built(ctx, cluster_id, found)


def _seen_machine(ctx: Context, cluster_id: str, name: str) -> Row:
    row = machine_rows.by_name(ctx.tx, ctx.scope, cluster_id, name) if ids.SLUG.fullmatch(name) else None
    if row is None or not reserved.visible(ctx.tx, ctx.scope, [row["id"]], _seer(ctx)):
        raise _no_machine(name, "machine")
    return row


def one(ctx: Context, cluster: str, id: str) -> Details:
    """Return a reservation with what it covers now and what goes on there. Errors: `NOT_FOUND`."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    return _details(ctx, _row(ctx, cluster_id, id))


def _row(ctx: Context, cluster_id: str, id: str) -> Row:
    row = rows.get(ctx.tx, ctx.scope, cluster_id, id) if ids.is_uuid(id) else None
    if row is None:
        raise not_found()
    return row


def _details(ctx: Context, row: Row) -> Details:
    theirs = rows.workspaces_of(ctx.tx, ctx.scope, [row["id"]]).get(row["id"], {})
    covered = reserved.covered_by(ctx.tx, ctx.scope, row)
    effect = _effect(ctx, covered, theirs, (row["starts_at"], row["ends_at"]))
    return Details(_built(ctx, row["cluster_id"], [row])[0], effect)


def _built(ctx: Context, cluster_id: str, found: Sequence[Row]) -> list[Reservation]:
    """As many questions for a page of them as for one."""
    ids_of_page = [row["id"] for row in found]
    theirs = rows.workspaces_of(ctx.tx, ctx.scope, ids_of_page)
    named = rows.named(ctx.tx, ctx.scope, ids_of_page)
    pools = reserved.carrying(ctx.tx, ctx.scope, cluster_id, {row["pool"] for row in found if row["pool"]})
    every = {machine["id"] for machines in named.values() for machine in machines}
    seen = reserved.visible(ctx.tx, ctx.scope, every, _seer(ctx))
    built = []
    for row in found:
        its = named.get(row["id"], ())
        built.append(
            Reservation(
                row["id"],
                row["pool"],
                [machine["name"] for machine in its if machine["id"] in seen],
                pools.get(row["pool"], 0) + sum(machine["pool"] != row["pool"] for machine in its),
                row["starts_at"],
                row["ends_at"],
                list(theirs.get(row["id"], {}).values()),
                row["reason"],
                rules.state(row["starts_at"], row["ends_at"], ctx.now),
                row["login"],
                row["created_at"],
            )
        )
    return built


def _effect(ctx: Context, what: Covered, spared: Mapping[str, str], window: tuple[datetime, datetime]) -> Effect:
    who, start = _seer(ctx), window[0]
    machines = reserved.machines_of(ctx.tx, what, who, SHOWN)
    stays = Stays(list(spared), None if start <= ctx.now else start - STOP_GRACE)
    over = rules.state(*window, ctx.now) is State.PAST
    work = [] if over else reserved.work_on(ctx.tx, what, stays, who, SHOWN)
    total = 0 if over else reserved.count_work(ctx.tx, what, stays)
    kept_out = reserved.kept_out(ctx.tx, what, spared, who)
    return Effect(
        [machine["name"] for machine in machines],
        reserved.count(ctx.tx, what) - len(machines),
        [Work(**one) for one in work],
        total - len(work),
        kept_out.named,
        kept_out.left_out,
    )


def _seer(ctx: Context) -> Seer:
    return Seer(None if ctx.admin else ctx.user.id)


# --- told


def told(tx: Tx, scope: Scope, row: Row) -> dict[str, object]:
    """Return a reservation as the journal tells it."""
    theirs = rows.workspaces_of(tx, scope, [row["id"]]).get(row["id"], {})
    return {
        "pool": row["pool"],
        "nodes": [machine["name"] for machine in rows.named(tx, scope, [row["id"]]).get(row["id"], ())],
        "start": rules.utc(row["starts_at"]),
        "end": rules.utc(row["ends_at"]),
        "workspaces": list(theirs.values()),
        "reason": row["reason"],
    }


def touch(tx: Tx, what: Covered) -> None:
    """Have placement look at these machines anew, and try what waits."""
    machine_ids = reserved.ids(tx, what)
    for first in range(0, max(1, len(machine_ids)), TOUCHED_AT_ONCE):
        fleet.touch(tx, what.scope, what.cluster_id, machine_ids[first : first + TOUCHED_AT_ONCE])


def _subject(ctx: Context, cluster_id: str) -> Subject:
    return Subject(org=ctx.org.id, cluster=cluster_id)
