"""`corral machine`: the admin's side (list, show, cordon, release, remove) and a workspace's own machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from corral.cli.data_location import data_location, disk_lines, location_line
from corral.cli.gpu_faults import clear_fault, faults
from corral.cli.machine_place import place as place_machine
from corral.cli.output import Column, age, column, details, emit, first_of, gib, safe, say, shown, state_style, table
from corral.cli.place import Place, at
from corral.cli.removal import remove
from corral.cli.root import Group
from corral.cli.updates import release_text, update
from corral.client.errors import CorralError
from corral.client.machine_models import Affected, MachineDetails


@click.group(cls=Group)
def machine() -> None:
    """Machines."""


@machine.command("list")
@click.option("--state", type=click.Choice(["idle", "up", "down"]), help="Only in this state.")
@click.option("--pool", "pools", multiple=True, help="Only of this pool; repeatable.")
@at("org", "cluster", "workspace")
def list_machines(place: Place, state: str | None, pools: Sequence[str]) -> None:
    """The organisation's machines (admins), or those a workspace may use (members, or with --workspace)."""
    if place.workspace_name is not None:
        _list_of_workspace(place)
        return
    try:
        rows = [one.raw for one in place.cluster.machines(state, pools)]
    except CorralError as error:
        if error.code != "FORBIDDEN":
            raise
        _list_of_workspace(place)  # what a member may see
        return
    columns = [
        column("NAME", "name"),
        Column("STATE", _state, style=state_style),
        Column("SINCE", lambda row: age(row["state_since"]), drop=3),
        column("POOL", "pool"),
        Column("GPUS", _gpus, flow=True),
        column("VCPU", "vcpu", right=True, drop=1),
        Column("RAM", lambda row: gib(row["ram_mib"]), right=True, drop=2),
        Column("RELEASE", release_text, drop=4),
        column("ADDRESS", "address", drop=5),
        Column("NEW WORK", lambda row: row["closed"] or row["reserved"] or "yes", flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No machine. Add one: corral cluster token create"))


def _list_of_workspace(place: Place) -> None:
    rows = [one.raw for one in place.workspace.machines()]
    columns = [
        column("NAME", "name"),
        column("CLUSTER", "cluster"),
        column("POOL", "pool"),
        column("GPU", "gpu_models"),
        Column("AVAILABLE", lambda row: f"{row['gpus_available']} of {row['gpus_total']}", right=True),
        column("VCPU", "vcpu", right=True, drop=1),
        Column("RAM", lambda row: gib(row["ram_mib"]), right=True, drop=1),
        Column("STATUS", _status, style=state_style, flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No machine in this workspace's pools. Ask an admin for access."))


def _status(row: dict[str, Any]) -> str:
    return f"{row['status']}; {row['reserved']}" if row["reserved"] else str(row["status"])


def _state(row: dict[str, Any]) -> str:
    cordon = row.get("cordon")
    return f"{row['state']}, cordoned: {cordon['reason']}" if cordon else str(row["state"])


def _gpus(row: dict[str, Any]) -> str:
    gpus = row["gpus"]
    if not gpus["total"]:
        return ""
    faulty = gpus["total"] - gpus["healthy"]
    return f"{gpus['free']} of {gpus['total']} free {shown(gpus['models'])}" + (f", {faulty} faulty" if faulty else "")


@machine.command()
@click.argument("name")
@at("org", "cluster")
def show(place: Place, name: str) -> None:
    """All about one machine: hardware, GPUs and who holds them, what runs there."""
    found = place.cluster.machine(name)
    emit(found.raw, lambda: _draw(found))


def _draw(found: MachineDetails) -> None:
    details(_facts(found))
    for line in _notes(found):
        say(line)
    if found.gpus:
        say()
        table([gpu.raw for gpu in found.gpus], _GPUS)
    if found.running:
        say()
        table([work.raw for work in found.running], _RUNNING)


def _facts(found: MachineDetails) -> list[tuple[str, object]]:
    one = found.machine
    cordon = f"{one.cordon.reason}, by {one.cordon.by}, {age(one.cordon.raw['at'])} ago" if one.cordon else None
    return [
        ("name", one.name),
        ("state", f"{one.state}, for {age(one.raw['state_since'])}"),
        ("last seen", f"{age(one.raw['last_seen'])} ago" if one.last_seen else "never"),
        ("connected", one.connected),
        ("new work", one.closed or one.reserved or "yes"),
        ("cordoned", cordon),
        ("quarantine", f"{one.quarantine.kind}: {one.quarantine.reason}" if one.quarantine else None),
        ("pool", one.pool),
        ("site, rack, fabric", [part for part in (one.site, one.rack, one.fabric) if part]),
        ("labels", one.labels),
        ("host name", one.hostname),
        ("address", one.address),
        ("agent", release_text(one.raw)),
        ("vCPU", one.vcpu),
        ("RAM", gib(one.ram_mib)),
        ("storage", gib(one.storage_mib)),
        *_hardware(found.inventory),
        ("disks", disk_lines(found.disks)),
        ("data location", location_line(found.data_location)),
    ]


def _notes(found: MachineDetails) -> Iterator[str]:
    """Yield a line for each window that covers the machine, and for each condition it has."""
    for window in found.reservations:
        when = f"from {safe(window.raw['start'])} to {safe(window.raw['end'])}"
        reason = f": {safe(window.reason)}" if window.reason else ""
        yield f"reserved   for {safe(window.whom)} {when}{reason}"
    for condition in found.machine.conditions:
        yield f"condition  {safe(condition.kind)}: {safe(condition.message)}"


def _hardware(facts: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what the machine says of itself beyond what is counted."""
    limits = {"loop": "enforced", "none": "not enforced on this machine"}
    speed = facts.get("network_mbps")
    return [
        ("storage limits", limits.get(facts.get("storage_quota", ""), facts.get("storage_quota"))),
        ("runtime", facts.get("runtime")),
        ("system", " ".join(str(facts[key]) for key in ("os", "kernel", "arch") if facts.get(key)) or None),
        ("processor", facts.get("cpu_model")),
        (
            "GPU driver",
            " ".join(str(facts[key]) for key in ("driver_version", "cuda_version") if facts.get(key)) or None,
        ),
        ("network", f"{speed} Mbit/s" if speed else None),
        ("addresses", facts.get("addresses")),
    ]


def _gpu_state(row: dict[str, Any]) -> str:
    state = f"{row['state']}: {row['detail']}" if row["detail"] else str(row["state"])
    return "; ".join([state, *(f"fenced, {fault['code']}: {fault['meaning']}" for fault in row["faults"])])


def _holder(row: dict[str, Any]) -> str:
    return f"{row['workspace']}/{row['workload']}" if row["workload"] else str(row["busy"])


_GPUS = [
    column("GPU", "uuid"),
    column("MODEL", "model"),
    Column("MEMORY", lambda row: gib(row["memory_mib"])),
    Column("STATE", _gpu_state, flow=True),
    Column("USED BY", _holder),
]
_RUNNING = [
    Column("WORK", lambda row: f"{row['workspace']}/{row['name']}"),
    column("KIND", "kind"),
    column("STATE", "state", style=state_style),
    column("GPUS", "gpus", right=True),
]


def _draw_affected(told: Affected) -> None:
    say(f"Runs on it: {_works(told) or 'nothing'}")
    say(f"May use it: {first_of(told.workspaces, told.workspaces_left_out)}")


def _works(told: Affected) -> str:
    return ", ".join(f"{safe(work.workspace)}/{safe(work.name)}" for work in told.running)


@machine.command()
@click.argument("name")
@click.option("--reason", help="Why; shown beside the machine. Default: maintenance.")
@click.option("--dry-run", is_flag=True, help="Only say who and what would be affected.")
@at("org", "cluster")
def cordon(place: Place, name: str, reason: str | None, dry_run: bool) -> None:
    """Stop new work landing on a machine; what runs there keeps running."""
    if dry_run:
        told = place.cluster.affected(name)
        emit(told.raw, lambda: _draw_affected(told))
        return
    one = place.cluster.cordon(name, reason)
    why = one.cordon.reason if one.cordon else ""
    emit(one.raw, lambda: say(f"{safe(one.name)} is cordoned: {safe(why)}. What runs there keeps running."))


@machine.command()
@click.argument("name")
@at("org", "cluster")
def uncordon(place: Place, name: str) -> None:
    """Let new work land on a machine again."""
    one = place.cluster.uncordon(name)
    emit(one.raw, lambda: say(f"{safe(one.name)} takes new work." if not one.closed else _still_closed(one.raw)))


@machine.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Say who and what would be affected; change nothing.")
@at("org", "cluster")
def release(place: Place, name: str, dry_run: bool) -> None:
    """Let a quarantined machine (a suspected clone, or one with unknown work) take new work again.

    Look first: corral machine show NAME says why it was quarantined.
    """
    if dry_run:
        told = place.cluster.affected(name)
        emit(told.raw, lambda: _draw_affected(told))
        return
    one = place.cluster.release_quarantine(name)
    emit(one.raw, lambda: say(f"{safe(one.name)} takes new work." if not one.closed else _still_closed(one.raw)))


def _still_closed(row: dict[str, Any]) -> str:
    return f"{safe(row['name'])} takes no new work yet: {safe(row['closed'])}."


machine.add_command(data_location)
machine.add_command(faults)
machine.add_command(clear_fault)
machine.add_command(place_machine)
machine.add_command(remove)
machine.add_command(update)
