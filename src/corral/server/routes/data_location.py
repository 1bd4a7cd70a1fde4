"""A machine's data location and the disks it may lie on (spec 10, "Data location")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from corral.domain import data_location as rules
from corral.server.agents import Hub
from corral.server.bodies import DryRun
from corral.server.door import AtDoor
from corral.store.transaction import Row
from corral.usecases import data_location as use
from corral.usecases import machines

router = APIRouter()
PATH = "/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}/data-location"


class DiskView(BaseModel):
    """A local disk that can be written. `os`: it holds the operating system; `recommended`: the one to propose."""

    mount: str
    device: str
    kind: str
    size_mib: int
    free_mib: int
    os: bool
    recommended: bool


class DataLocationView(BaseModel):
    """`state`: making | ready | failed, and `message` why. `max_bytes` 0: the disk is the limit.

    `mount` is where its disk is mounted; `copies` how many drives its machine keeps there.
    """

    path: str
    mount: str
    max_bytes: int
    state: str
    message: str
    copies: int


class DataLocationBody(BaseModel):
    """`path`: a folder on a disk of the machine; it is made if it is missing."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str
    max_bytes: int = 0


class DataLocationAnswer(BaseModel):
    """The machine's data location (null: none is chosen) and the disks it could lie on."""

    name: str
    dry_run: bool
    data_location: DataLocationView | None
    disks: list[DiskView]


@router.put(PATH)
def choose_data_location(
    org: str,
    cluster: str,
    node: str,
    body: DataLocationBody,
    door: AtDoor,
    request: Request,
    dry_run: DryRun = False,
) -> DataLocationAnswer:
    """Choose the folder where this machine may keep drive copies; those made elsewhere stay where they are.

    The machine makes the folder: `state` says how that stands. The same again, where it failed: it tries anew.
    """
    asked = rules.Asked(body.path, body.max_bytes)
    if dry_run:
        with door.read() as ctx:
            row = machines.find(ctx, cluster, node)
            chosen = use.would_choose(row, asked, free_space(request, row["id"]))
        would = DataLocationView(**asdict(chosen), state=rules.State.MAKING.value, message="", copies=0)
        return answer(row, request).model_copy(update={"dry_run": True, "data_location": would})
    with door.write() as ctx:
        found = machines.find(ctx, cluster, node)
        row = use.choose(ctx, (cluster, node), asked, free_space(request, found["id"]))
    return answer(row, request)


@router.delete(PATH)
def forget_data_location(
    org: str, cluster: str, node: str, door: AtDoor, request: Request, dry_run: DryRun = False
) -> DataLocationAnswer:
    """Forget a machine's data location; nothing on its disks is removed. Refused while it holds drive copies."""
    with door.read() if dry_run else door.write() as ctx:
        row = use.forget(ctx, (cluster, node), dry_run=dry_run)
    found = answer(row, request)
    return found.model_copy(update={"dry_run": True, "data_location": None}) if dry_run else found


def answer(row: Row, request: Request) -> DataLocationAnswer:
    return DataLocationAnswer(
        name=row["name"], dry_run=False, data_location=location_view(row), disks=disk_views(row, request)
    )


def location_view(row: Row) -> DataLocationView | None:
    chosen = use.chosen(row)
    if chosen is None:
        return None
    stands: dict[str, Any] = {name: row[f"data_{name}"] for name in ("state", "message", "copies")}
    return DataLocationView(**asdict(chosen), **stands)


def disk_views(row: Row, request: Request) -> list[DiskView]:
    """Return the disks to offer, by mount."""
    offered = rules.disks(row["inventory"], free_space(request, row["id"]))
    best = rules.recommended(offered)
    return [DiskView(**asdict(disk), recommended=disk is best) for disk in offered]


def free_space(request: Request, machine_id: str) -> Mapping[str, int]:
    """Return what is free on the disks of a connected machine (MiB, by mount), as it said last."""
    hub: Hub | None = getattr(request.app.state, "hub", None)  # there while the application runs
    said = hub.telemetry(machine_id) if hub is not None else None
    return said.disk_free_mib if said is not None else {}
