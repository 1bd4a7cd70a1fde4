"""A simulated fleet against a control plane that runs: joined by real tokens, over the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from corral.agent.link import Pace
from corral.agent.site import Site
from corral.client.clusters import Cluster
from corral.client.config import Site as ClientSite
from corral.client.transport import Transport
from corral.protocol.messages import AllocationState, Desired, Removed
from corral.sim.fleet import Fleet, FleetSpec, Stats, run_fleet
from corral.sim.machine import Hardware, Identity, SimMachine, inventory
from corral.store.engine import Database
from corral.store.tables.site import sites
from tests.agent.fake_site import fake_site, run, until
from tests.agent.scripted import want
from tests.live_server import live_server
from tests.world import World

QUICK = Pace(base_s=0.05, cap_s=0.5)
SPEC = FleetSpec(machines=12, hardware=Hardware(gpus=8), rack_size=4, pace=QUICK)


class Live:
    """A running site whose organisation acme may have many machines."""

    def __init__(self, url: str, token: str) -> None:
        self.site = Site.at(url)
        self._transport = Transport(ClientSite(url=url, token=token))
        self.cluster = Cluster(self._transport, "/api/v1/orgs/acme", "default")

    def token(self, number: int) -> str:
        return self.cluster.create_join_token({"rack": f"r{number // SPEC.rack_size}"}).token or ""

    def states(self) -> dict[str, str]:
        return {machine.name: machine.state for machine in self.cluster.machines()}

    def close(self) -> None:
        self._transport.close()


@pytest.fixture
def live(sqlite_db: Database, tmp_path: Path) -> Iterator[Live]:
    world = World(sqlite_db, tmp_path / "world")
    with sqlite_db.write() as tx:
        tx.run(update(sites).values(hosted_machine_limit=1000))
    with live_server(sqlite_db) as site:
        live = Live(site.url, world.tokens["owner"])
        try:
            yield live
        finally:
            live.close()


def test_every_machine_joins_reports_and_is_up_with_its_gpus(live: Live) -> None:
    async def test() -> None:
        fleet = Fleet(live.site, SPEC)
        await fleet.join(live.token)
        assert len({identity.machine for identity in fleet.identities}) == SPEC.machines
        async with fleet.running():
            await fleet.all_connected()
            await until(lambda: fleet.stats().reports_answered >= 2 * SPEC.machines)
            states = await asyncio.to_thread(live.states)
            assert states == {f"sim-{n + 1:05d}": "up" for n in range(SPEC.machines)}
            details = await asyncio.to_thread(live.cluster.machine, "sim-00001")
            assert len(details.gpus) == 8
            stats = fleet.stats()
            assert stats.connected == stats.machines == SPEC.machines
            assert 0 < stats.ack_p50_ms <= stats.ack_p99_ms <= stats.ack_max_ms

    run(test)


def test_a_lost_rack_and_a_reconnect_storm_come_back(live: Live) -> None:
    async def test() -> None:
        fleet = Fleet(live.site, SPEC)
        await fleet.join(live.token)
        async with fleet.running():
            await fleet.all_connected()
            await fleet.lose_rack(1)
            assert fleet.stats().connected == SPEC.machines - SPEC.rack_size
            fleet.rack_back(1)
            await fleet.all_connected()
            assert await fleet.reconnect_storm() >= 0
            assert fleet.stats().connected == SPEC.machines

    run(test)


def test_a_fleet_joined_before_comes_back_without_tokens(live: Live) -> None:
    async def test() -> None:
        first = Fleet(live.site, replace(SPEC, machines=2))
        await first.join(live.token)
        again = Fleet(live.site, replace(SPEC, machines=3), first.identities)
        await again.join(live.token)
        assert again.identities[:2] == first.identities
        async with again.running():
            await again.all_connected()
        assert len(await asyncio.to_thread(live.states)) == 3

    run(test)


def test_the_figures_are_told_until_the_fleet_is_cancelled(live: Live) -> None:
    async def test() -> None:
        told: list[Stats] = []
        task = asyncio.ensure_future(
            run_fleet(live.site, replace(SPEC, machines=2), live.token, told.append, every_s=0.1)
        )
        await until(lambda: told and told[-1].connected == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test)


def test_a_simulated_machine_runs_what_it_is_told_and_says_that_it_is_simulated() -> None:
    async def test() -> None:
        async with fake_site() as site:
            machine = SimMachine(Site.at(site.url), Identity("ef" * 32, "m1", "sim-1"), Hardware(), pace=QUICK)
            task = asyncio.ensure_future(machine.run())
            session = await site.session()
            gpu = inventory("sim-1", Hardware()).gpus[0].uuid
            await session.send("desired", Desired((want(gpus=(gpu,)),)))
            await until(lambda: session.reports and session.last.allocations)
            await until(lambda: session.last.allocations[0].state is AllocationState.RUNNING)
            assert session.last.allocations[0].gpus == (gpu,)
            assert [t.util_percent for t in session.last.gpu_telemetry][:2] == [93, 0]
            first = session.reports[0].inventory
            assert first is not None
            assert first.runtime == "sim"
            await session.send("desired", Desired((want(generation=2, stop=True),)))
            await until(lambda: session.last.allocations[0].state is AllocationState.GONE)
            await session.send("removed", Removed("bye"))
            assert await task == "bye"
            await machine.close()

    run(test)


def test_gpus_of_one_name_are_always_the_same_and_of_two_names_never() -> None:
    one, two = inventory("sim-1", Hardware()), inventory("sim-2", Hardware())
    assert one == inventory("sim-1", Hardware())
    assert not {gpu.uuid for gpu in one.gpus} & {gpu.uuid for gpu in two.gpus}
    assert [gpu.slot for gpu in one.gpus] == sorted(gpu.slot for gpu in one.gpus)
