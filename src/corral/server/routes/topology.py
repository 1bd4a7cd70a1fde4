"""A workspace's GPU map and topology: with only what its pools grant."""

from __future__ import annotations

from typing import TypeVar

from fastapi import APIRouter
from pydantic import BaseModel

from corral.domain import topology as rules
from corral.server.door import AtDoor, Page, Paging, keys_token
from corral.usecases import topology as use

router = APIRouter()
P = TypeVar("P", use.GpuPlace, use.MachinePlace)


class LocatedGpuView(BaseModel):
    """One GPU and where it is. `use`: free, allocated, busy, faulty or missing; `workload`: one of this workspace."""

    machine: str
    cluster: str
    pool: str
    site: str
    rack: str
    fabric: str
    uuid: str
    slot: str
    model: str
    memory_mib: int
    use: rules.GpuUse
    workload: str


class LocatedGpuList(BaseModel):
    items: list[LocatedGpuView]
    next_page_token: str | None


class TopologyGpu(BaseModel):
    uuid: str
    slot: str
    model: str
    memory_mib: int
    use: rules.GpuUse
    workload: str


class TopologyMachine(BaseModel):
    name: str
    cluster: str
    pool: str
    status: str
    gpus: list[TopologyGpu]


class TopologyFabric(BaseModel):
    name: str
    machines: list[TopologyMachine]


class TopologyRack(BaseModel):
    name: str
    fabrics: list[TopologyFabric]


class TopologySite(BaseModel):
    name: str
    racks: list[TopologyRack]


class Topology(BaseModel):
    """A page holds `page_size` machines; a site, rack or fabric may go on in the next page. "" = not labelled."""

    sites: list[TopologySite]
    next_page_token: str | None


@router.get("/api/v1/orgs/{org}/workspaces/{ws}/gpus")
def list_workspace_gpus(org: str, ws: str, door: AtDoor, page: Page) -> LocatedGpuList:
    """The GPUs of the workspace's machines, by machine and slot."""
    with door.read() as ctx:
        found = use.gpus(ctx, _place(use.GpuPlace, page), page.size + 1)
    shown = found[: page.size]
    items = [
        LocatedGpuView(
            machine=one.place.machine,
            cluster=one.cluster,
            pool=one.pool,
            site=one.site,
            rack=one.rack,
            fabric=one.fabric,
            **vars(one.gpu),
        )
        for one in shown
    ]
    return LocatedGpuList(items=items, next_page_token=keys_token(shown[-1].place) if len(found) > page.size else None)


@router.get("/api/v1/orgs/{org}/workspaces/{ws}/topology")
def show_topology(org: str, ws: str, door: AtDoor, page: Page) -> Topology:
    """Where the workspace's machines are: site, rack, fabric, machine, GPU."""
    with door.read() as ctx:
        sites, last = use.tree(ctx, _place(use.MachinePlace, page), page.size)
    return Topology(sites=[_site(site) for site in sites], next_page_token=keys_token(last) if last else None)


def _site(site: rules.Site) -> TopologySite:
    return TopologySite(name=site.name, racks=[_rack(rack) for rack in site.racks])


def _rack(rack: rules.Rack) -> TopologyRack:
    fabrics = [
        TopologyFabric(name=fabric.name, machines=[_machine(machine) for machine in fabric.machines])
        for fabric in rack.fabrics
    ]
    return TopologyRack(name=rack.name, fabrics=fabrics)


def _machine(machine: rules.Machine) -> TopologyMachine:
    gpus = [TopologyGpu(**vars(gpu)) for gpu in machine.gpus]
    return TopologyMachine(
        name=machine.name, cluster=machine.cluster, pool=machine.pool, status=machine.status, gpus=gpus
    )


def _place(kind: type[P], page: Paging) -> P | None:
    """Return the place that a page begins after. Errors: `INVALID_REQUEST`."""
    keys = page.keys([str] * len(kind._fields))
    return None if keys is None else kind(*map(str, keys))
