"""Changing where a machine is and which pool it is of (spec 10, "Placement labels").

Running work stays, also of workspaces that can no longer use the machine; new work follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corral.domain import labels as rules
from corral.domain.reservations import Window
from corral.domain.workspaces import Some
from corral.store import fleet, reserved
from corral.store import machines as rows
from corral.store.transaction import Row
from corral.usecases import machines
from corral.usecases.context import Context
from corral.usecases.machines import Running


@dataclass(frozen=True)
class Move:
    """What a change of labels means. `stays`: work there of workspaces that cannot use the machine afterwards.

    `windows`: reservations that cover it afterwards.
    """

    name: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    workspaces_before: Some
    workspaces_after: Some
    stays: Sequence[Running]
    windows: Sequence[Window]


def preview(ctx: Context, cluster: str, name: str, given: Mapping[str, object]) -> Move:
    """Say what these labels would mean; changes nothing. Errors: `INVALID_LABEL`, `NOT_FOUND`, `NODE_NOT_FOUND`."""
    changed = rules.placement(given)
    return _move(ctx, machines.find(ctx, cluster, name), changed)


def place(ctx: Context, cluster: str, name: str, given: Mapping[str, object]) -> Move:
    """Set those of pool, site, rack and fabric that are given; "" takes one away. Others stay as they are.

    Errors: `INVALID_LABEL`, `NOT_FOUND`, `NODE_NOT_FOUND`.
    """
    changed = rules.placement(given)
    fleet.lock(ctx.tx, ctx.scope, machines.find(ctx, cluster, name)["cluster_id"])
    row = machines.find(ctx, cluster, name)
    move = _move(ctx, row, changed)
    if move.before != move.after:
        ref = rows.ref_of(row)
        fleet.touch(ctx.tx, ctx.scope, ref.cluster_id, [ref.id])
        rows.save(ctx.tx, ref, dict(move.after))
        before, after = dict(move.before), dict(move.after)
        ctx.record("cluster.node.placement", ref.subject, name=ref.name, before=before, after=after)
    return move


def _move(ctx: Context, row: Row, changed: Mapping[str, str]) -> Move:
    before = {key: str(row[key]) for key in rules.PLACEMENT}
    after = {**before, **changed}
    able = [
        rows.workspaces_that_may_use(ctx.tx, ctx.scope, row["cluster_id"], labels["pool"]) for labels in (before, after)
    ]
    there = machines.running(ctx, rows.ref_of(row))
    moved = {"id": row["id"], "cluster_id": row["cluster_id"], "pool": after["pool"]}
    windows = reserved.windows_on(ctx.tx, ctx.scope, [moved]).get(row["id"], ())
    theirs = {work.workspace for work in there}
    still = rows.able_of(ctx.tx, ctx.scope, row["cluster_id"], after["pool"], theirs)
    stays = [work for work in there if work.workspace not in still]
    return Move(row["name"], before, after, able[0], able[1], stays, windows)
