"""A staged update of a simulated fleet over the real protocol: all come back, or one does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from corral.agent.site import Site
from corral.client.clusters import Cluster
from corral.client.config import Site as ClientSite
from corral.client.transport import Transport
from corral.client.updates import ClusterUpdate
from corral.protocol.updates import Update
from corral.server.artefact import Artefact
from corral.sim.fleet import Fleet, FleetSpec
from corral.sim.machine import Hardware, SimMachine
from corral.store.engine import Database
from corral.store.tables.site import sites
from tests.agent.fake_site import run
from tests.live_server import live_server
from tests.releases import Serves
from tests.sim.test_fleet import QUICK
from tests.world import World

NEW = "9.9.9"
SPEC = FleetSpec(machines=12, hardware=Hardware(gpus=1), pace=QUICK)
WITHIN_S = 60.0


class Live:
    """A site that serves a newer release than its machines have."""

    def __init__(self, url: str, token: str) -> None:
        self.site = Site.at(url)
        self.transport = Transport(ClientSite(url=url, token=token))
        self.cluster = Cluster(self.transport, "/api/v1/orgs/acme", "default")

    def token(self, _number: int) -> str:
        return self.cluster.create_join_token({}).token or ""

    def releases(self) -> list[str]:
        return sorted({machine.release for machine in self.cluster.machines()})


@pytest.fixture
def live(sqlite_db: Database, tmp_path: Path) -> Iterator[Live]:
    world = World(sqlite_db, tmp_path / "world")
    with sqlite_db.write() as tx:
        tx.run(update(sites).values(hosted_machine_limit=1000))
    pyz = tmp_path / "corral-agent.pyz"
    pyz.write_bytes(b"a release")
    served = Serves(Artefact(pyz, tmp_path / "SHA256SUMS", "ab" * 32, 9), NEW)
    with live_server(sqlite_db, artefact=served) as site:
        live = Live(site.url, world.tokens["admin"])
        try:
            yield live
        finally:
            live.transport.close()


async def ended(live: Live) -> ClusterUpdate:
    """Wait until the update that goes on has ended."""
    async with asyncio.timeout(WITHIN_S):
        while (told := await asyncio.to_thread(live.cluster.updates.progress)).state == "running":
            await asyncio.sleep(0.05)
    return told


def rolled_out(live: Live, broken: int | None = None) -> tuple[ClusterUpdate, list[str]]:
    """Update a fleet, of which one machine may refuse; return how it ended, and who was asked in which order."""
    asked: list[str] = []

    def take(machine: SimMachine, ask: Update) -> None:
        if machine.identity.name not in asked:
            asked.append(machine.identity.name)
        if broken is not None and machine.identity.name == f"sim-{broken:05}":
            machine.refused(ask, "bad checksum")
        else:
            machine.updated(ask)

    async def test() -> ClusterUpdate:
        fleet = Fleet(live.site, SPEC)
        await fleet.join(live.token)
        async with fleet.running():
            for machine in fleet.machines:
                machine.on_update = take
            await fleet.all_connected()
            async with asyncio.timeout(WITHIN_S):
                while {one.state for one in await asyncio.to_thread(lambda: list(live.cluster.machines()))} != {"up"}:
                    await asyncio.sleep(0.05)
            begun = await asyncio.to_thread(live.cluster.updates.start)
            assert begun.state == "running"
            return await ended(live)

    return run(test), asked


def test_a_fleet_is_updated_whole(live: Live) -> None:
    told, asked = rolled_out(live)
    assert (told.state, [stage.done for stage in told.stages]) == ("done", [1, 2, 9])
    assert asked[0] == "sim-00001" and sorted(asked[1:3]) == ["sim-00002", "sim-00003"]
    assert len(asked) == 12
    assert live.releases() == [NEW]


def test_one_that_does_not_come_back_keeps_the_update_from_the_rest(live: Live) -> None:
    told, asked = rolled_out(live, broken=2)
    assert told.state == "failed"
    assert told.message == "stopped, because sim-00002 did not come back: bad checksum"
    assert sorted(asked) == ["sim-00001", "sim-00002", "sim-00003"]
    assert len(live.releases()) == 2
    states = {one.name: one.state for page in live.cluster.updates.pages() for one in page.machines}
    assert (states["sim-00001"], states["sim-00002"], states["sim-00012"]) == ("done", "failed", "left_out")
