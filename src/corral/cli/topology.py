"""`corral workspace gpus` and `corral workspace topology`: where a workspace's GPUs are, and what each is used for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from corral.cli.output import Column, column, emit, note, safe, say, shown, table
from corral.cli.place import Place, at
from corral.cli.root import Command

if TYPE_CHECKING:
    from corral.client.topology import TopologyGpu, TopologyMachine, TopologySite

_NONE = "No machine in this workspace's pools. Ask an admin for access."


@click.command(cls=Command)
@at("org", "workspace")
def gpus(place: Place) -> None:
    """Each GPU of the workspace's machines: where it is, what holds it."""
    rows = [one.raw for one in place.workspace.gpus()]
    columns = [
        column("MACHINE", "machine"),
        column("SLOT", "slot"),
        column("GPU", "model"),
        Column("USE", lambda row: f"{row['use']}: {row['workload']}" if row["workload"] else row["use"], flow=True),
        column("POOL", "pool"),
        column("SITE", "site", drop=3),
        column("RACK", "rack", drop=1),
        column("FABRIC", "fabric", drop=2),
        column("UUID", "uuid", drop=4),
    ]
    emit(rows, lambda: table(rows, columns, _NONE))


@click.command(cls=Command)
@at("org", "workspace")
def topology(place: Place) -> None:
    """The workspace's machines by site, rack and fabric."""
    sites = place.workspace.topology()
    emit([site.raw for site in sites], lambda: _draw(sites))


def _draw(sites: list[TopologySite]) -> None:
    if not sites:
        note(_NONE)
    for site in sites:
        say(f"site {shown(site.name)}")
        for rack in site.racks:
            say(f"  rack {shown(rack.name)}")
            for fabric in rack.fabrics:
                say(f"    fabric {shown(fabric.name)}")
                _draw_machines(fabric.machines)


def _draw_machines(machines: list[TopologyMachine]) -> None:
    width = max(len(safe(machine.name)) for machine in machines)
    for machine in machines:
        say(f"      {safe(machine.name):<{width}}  {safe(machine.status)}  {_counted(machine.gpus)}".rstrip())


def _counted(gpus: list[TopologyGpu]) -> str:
    """`4 H100: 3 free, 1 allocated`."""
    models = " and ".join(f"{n} {safe(model)}" for model, n in Counter(gpu.model for gpu in gpus).items())
    uses = ", ".join(f"{n} {safe(use)}" for use, n in Counter(gpu.use for gpu in gpus).items())
    return f"{models}: {uses}" if gpus else "no GPU"
