"""A workspace's GPUs as a map, and its machines as a tree of where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from corral.client.decode import View, decode
from corral.client.transport import Transport


@dataclass(frozen=True, kw_only=True)
class TopologyGpu(View):
    """One GPU. `use`: free | allocated | busy | faulty | missing; `workload`: what of this workspace holds it."""

    uuid: str
    slot: str
    model: str
    memory_mib: int
    use: str
    workload: str = ""


@dataclass(frozen=True, kw_only=True)
class LocatedGpu(TopologyGpu):
    """A GPU and where it is ("" = its machine is not labelled so)."""

    machine: str
    cluster: str
    pool: str = ""
    site: str = ""
    rack: str = ""
    fabric: str = ""


@dataclass(frozen=True, kw_only=True)
class TopologyMachine(View):
    name: str
    cluster: str
    status: str
    pool: str = ""
    gpus: list[TopologyGpu] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TopologyFabric(View):
    name: str
    machines: list[TopologyMachine]


@dataclass(frozen=True, kw_only=True)
class TopologyRack(View):
    name: str
    fabrics: list[TopologyFabric]


@dataclass(frozen=True, kw_only=True)
class TopologySite(View):
    name: str
    racks: list[TopologyRack]


def gpus(transport: Transport, path: str) -> Iterator[LocatedGpu]:
    """Yield the GPUs of the workspace's machines, by machine and slot."""
    for item in transport.pages(f"{path}/gpus"):
        yield decode(LocatedGpu, item)


def topology(transport: Transport, path: str) -> list[TopologySite]:
    """Return all of the workspace's machines as one tree, whatever pages it came in."""
    whole: list[dict[str, Any]] = []
    token: str | None = None
    while True:
        page = transport.call("GET", f"{path}/topology", params={"page_token": token})
        _join(whole, page["sites"], ("racks", "fabrics", "machines"))
        token = page["next_page_token"]
        if token is None:
            return [decode(TopologySite, site) for site in whole]


def _join(have: list[dict[str, Any]], more: list[dict[str, Any]], inside: tuple[str, ...]) -> None:
    """Add the branches `more`; the first of them may go on with the last of those there."""
    if have and more and inside and have[-1]["name"] == more[0]["name"]:
        _join(have[-1][inside[0]], more[0][inside[0]], inside[1:])
        more = more[1:]
    have.extend(more)
