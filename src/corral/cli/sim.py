"""`corral sim`: machines that are simulated and say so, against a running site (issue: the simulator)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import click

from corral.cli.output import note, print_json_line, say, wants_json
from corral.cli.place import Place, at
from corral.cli.root import Command

if TYPE_CHECKING:
    from corral.sim.fleet import Stats


@click.command(cls=Command)
@click.option("--machines", default=10, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--gpus", default=8, show_default=True, type=click.IntRange(0, 16), help="Of each machine.")
@click.option("--gpu-model", default="NVIDIA H100 80GB HBM3", show_default=True)
@click.option("--prefix", default="sim", show_default=True, help="Machines are called PREFIX-00001 and so on.")
@click.option("--pool", help="Their pool.")
@click.option("--latency", default=0.0, type=click.FloatRange(0), metavar="SECONDS", help="A start and stop take this.")
@click.option(
    "--faults",
    default=0,
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="So many machines have a GPU that breaks.",
)
@click.option("--for", "seconds", type=click.FloatRange(0), metavar="SECONDS", help="Default: until Ctrl-C.")
@at("org", "cluster")
def sim(
    place: Place,
    machines: int,
    gpus: int,
    gpu_model: str,
    prefix: str,
    pool: str | None,
    latency: float,
    faults: int,
    seconds: float | None,
) -> None:
    """Run simulated machines that speak the real protocol. Needs an admin's login: each joins with a token of its own.

    The hosted cluster takes 10 machines of an organisation unless its operator allows more:
    corral site settings --hosted-machine-limit N
    """
    from corral.agent.site import Site
    from corral.sim.fleet import FleetSpec, run_fleet, tune
    from corral.sim.machine import Hardware

    cluster, one_at_a_time = place.cluster, threading.Lock()

    def token(_number: int) -> str:
        with one_at_a_time:
            return cluster.create_join_token({"pool": pool} if pool else {}).token or ""

    spec = FleetSpec(machines, Hardware(gpus=gpus, gpu_model=gpu_model), prefix, latency, faulty_percent=faults)
    site = Site.at(place.site.url, place.site.ca or "")
    note(f"Simulating {machines} machines in '{cluster.name}'. Ctrl-C ends them.")

    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await run_fleet(site, spec, token, _tell)

    tune()
    asyncio.run(run())


def _tell(stats: Stats) -> None:
    if wants_json():
        print_json_line(vars(stats))
    else:
        say(
            f"{stats.connected} of {stats.machines} connected, {stats.reports_answered} reports answered "
            f"(p50 {stats.ack_p50_ms} ms, p99 {stats.ack_p99_ms} ms), {stats.allocations} allocations"
        )
