"""Choosing, changing and forgetting a machine's data location, and its machine's word of it (spec 10, "Data location").

Level-triggered: the machine is told what was chosen, by generation, and says how that stands. Copies already
made stay where they are when another folder is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from corral.domain import data_location as rules
from corral.domain.data_location import Chosen, Kept, Seen, State, Wanted
from corral.domain.errors import Refusal
from corral.domain.events import Entry
from corral.domain.machines import MachineRef
from corral.store import allocations, fleet
from corral.store import machines as rows
from corral.store.transaction import Actor, Row, Scope, Tx, Wake
from corral.usecases import machines
from corral.usecases.context import Context

FORGOTTEN = {
    "data_path": None,
    "data_mount": "",
    "data_max_bytes": 0,
    "data_state": State.NONE.value,
    "data_message": "",
    "data_copies": 0,
}
"""Columns of a machine that has no data location; nothing on its disks is touched."""


def would_choose(row: Row, asked: rules.Asked, free_mib: Mapping[str, int]) -> Chosen:
    """Return what would be chosen on the machine of this row. Errors: `INVALID_PATH`, `INVALID_REQUEST`."""
    return rules.choose(asked, rules.disks(row["inventory"], free_mib))


def choose(ctx: Context, machine: tuple[str, str], asked: rules.Asked, free_mib: Mapping[str, int]) -> Row:
    """Choose a machine's data location, or change it; return the machine's row. `machine`: cluster and name.

    The same again: one that failed is tried anew, else nothing happens.
    Errors: `NOT_FOUND`, `NODE_NOT_FOUND`, `INVALID_PATH`, `INVALID_REQUEST`.
    """
    row = machines.locked(ctx, *machine)
    after, before = would_choose(row, asked, free_mib), chosen(row)
    failed = row["data_state"] == State.FAILED.value
    if before == after and not failed:
        return row
    moved = before is None or (before.path, before.mount) != (after.path, after.mount)
    values = {"data_path": after.path, "data_mount": after.mount, "data_max_bytes": after.max_bytes}
    if moved or failed:
        anew = {"data_state": State.MAKING.value, "data_message": "", "data_copies": 0}
        values |= {"data_generation": row["data_generation"] + 1, **anew}
    return _changed(ctx, row, values, after)


def forget(ctx: Context, machine: tuple[str, str], *, dry_run: bool = False) -> Row:
    """Forget a machine's data location; its folder and what lies there stay. Return the machine's row.

    Errors: `NOT_FOUND`, `NODE_NOT_FOUND`, `DATA_LOCATION_IN_USE`.
    """
    row = machines.find(ctx, *machine) if dry_run else machines.locked(ctx, *machine)
    if chosen(row) is None:
        return row
    using = allocations.with_drives_on(ctx.tx, ctx.scope, row["id"])
    if row["data_copies"] or using:
        raise _in_use(row, using)
    if dry_run:
        return row
    return _changed(ctx, row, {**FORGOTTEN, "data_generation": row["data_generation"] + 1}, None)


def _changed(ctx: Context, row: Row, values: Mapping[str, object], after: Chosen | None) -> Row:
    ref = rows.ref_of(row)
    rows.save(ctx.tx, ref, values)
    told = {"before": _told(chosen(row)), "after": _told(after)}
    ctx.record("cluster.node.data_location", ref.subject, name=ref.name, **told)
    ctx.wake(Wake.DESIRED, ref.id)
    again = rows.get(ctx.tx, ctx.scope, row["id"])
    assert again is not None, "machines are never deleted"
    return again


def _told(location: Chosen | None) -> dict[str, object] | None:
    return None if location is None else asdict(location)


def _in_use(row: Row, using: list[str]) -> Refusal:
    kept = f"{row['data_copies']} drive copies" if row["data_copies"] else "drives"
    by = f", for {', '.join(using[:10])}" if using else ""
    return Refusal(
        "DATA_LOCATION_IN_USE",
        f"'{row['name']}' holds {kept} in {row['data_path']}{by}. End what uses them and remove the copies there, "
        "or choose another folder: copies that are made stay where they are.",
        copies=row["data_copies"],
        workloads=using,
    )


def chosen(row: Row) -> Chosen | None:
    """Return the data location in a machine's row."""
    if row["data_path"] is None:
        return None
    return Chosen(row["data_path"], row["data_mount"], row["data_max_bytes"])


# ---- the machine's half


def wanted(tx: Tx, machine: MachineRef) -> Wanted | None:
    """Return what the machine is told. None: nothing is said, for two copies of it might hear that."""
    row = rows.data_location(tx, machine)
    if row is None or row["quarantine"] is not None:
        return None
    return Wanted(row["data_generation"], chosen(row))


def judge(tx: Tx, machine: MachineRef, row: Row, seen: Seen) -> None:
    """Take a machine's word of its data location in; the same again writes nothing. The tenancy is locked already."""
    before = Kept(row["data_generation"], State(row["data_state"]), row["data_message"], row["data_copies"])
    after = rules.after(before, seen)
    if after == before:
        return
    if (after.state is State.READY) != (before.state is State.READY):
        fleet.touch(tx, Scope(machine.org_id), machine.cluster_id, [machine.id])
    rows.save(
        tx,
        machine,
        {"data_state": after.state.value, "data_message": after.message, "data_copies": after.copies},
    )
    if after.state is not State.MAKING and (after.state, after.message) != (before.state, before.message):
        data = {"name": machine.name, "path": row["data_path"], "ok": after.state is State.READY}
        told = {**data, "reason": after.message} if after.message else data
        by = Actor("machine", machine.id, machine.name)
        tx.record(Entry("cluster.node.data_location_made", machine.subject, told), by)
