"""A fleet of simulated machines in one process, against a control plane that runs (spec 40; issue point 11).

    fleet = Fleet(site, FleetSpec(machines=1000))
    await fleet.join(tokens)
    async with fleet.running():
        await fleet.all_connected()
        print(fleet.stats())

`tokens(n)` returns the join token of machine number n; it is called in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import corral
from corral.agent import join
from corral.agent.backoff import Jitter
from corral.agent.link import Pace
from corral.agent.site import Site
from corral.protocol.messages import PROTOCOL_VERSION, JoinRequest
from corral.sim.faults import FaultKind
from corral.sim.machine import Hardware, Identity, SimMachine

TokenSource = Callable[[int], str]
LATENCIES_KEPT = 100_000
JOIN_TRIES = 8
STARTS_A_SECOND = 200
"""Machines that start to connect: a thousand are not switched on in one instant."""


@dataclass(frozen=True)
class FleetSpec:
    machines: int
    hardware: Hardware = field(default_factory=Hardware)
    prefix: str = "sim"
    """Names are `<prefix>-00001` and so on."""
    latency_s: float = 0.0
    """How long a simulated start and stop take."""
    rack_size: int = 16
    faulty_percent: int = 0
    """Of the machines; each has a GPU that breaks once all are connected."""
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Stats:
    """Of the whole fleet; latencies (report sent -> answered) of the last 100,000 reports, in ms."""

    machines: int
    connected: int
    removed: int
    reports_sent: int
    reports_answered: int
    allocations: int
    ack_p50_ms: float
    ack_p99_ms: float
    ack_max_ms: float


class Fleet:
    """Many `SimMachine`s and what may happen to them."""

    def __init__(self, site: Site, spec: FleetSpec, identities: Sequence[Identity] = ()) -> None:
        """`identities`: of machines that have joined before; the others `join`."""
        self.site, self.spec = site, spec
        self.identities: list[Identity] = list(identities)
        self._machines: list[SimMachine] = []
        self._tasks: dict[int, asyncio.Task[str]] = {}
        self._latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._answered = 0

    @property
    def machines(self) -> Sequence[SimMachine]:
        return self._machines

    # -- joining ----------------------------------------------------------------------------

    async def join(self, tokens: TokenSource, at_once: int = 8) -> None:
        """Join the machines that have not joined yet. Errors: `join.JoinRefused`, `join.JoinUnanswered`."""
        loop = asyncio.get_running_loop()
        missing = range(len(self.identities), self.spec.machines)
        with ThreadPoolExecutor(at_once, thread_name_prefix="sim-join") as pool:
            joins = [loop.run_in_executor(pool, self._join_one, tokens, number) for number in missing]
            try:
                self.identities += await asyncio.gather(*joins)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _join_one(self, tokens: TokenSource, number: int) -> Identity:
        name = f"{self.spec.prefix}-{number + 1:05d}"
        key = os.urandom(32).hex()
        request = JoinRequest(tokens(number), key, name, PROTOCOL_VERSION, corral.__version__, "x86_64")
        jitter = Jitter(0.5, 10.0)
        for _ in range(JOIN_TRIES - 1):
            try:
                answer = join.ask(self.site, request)
                break
            except join.JoinUnanswered as unanswered:
                time.sleep(jitter.next(unanswered.wait_s))
        else:
            answer = join.ask(self.site, request)
        return Identity(key, answer.machine, answer.name, answer.incarnation)

    # -- running ----------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Have all machines that have joined report, until the block ends."""
        self._machines = [self._machine(identity) for identity in self.identities]
        self._connect(range(len(self._machines)))
        try:
            yield self
        finally:
            await self._cut(list(self._tasks))
            for machine in self._machines:
                await machine.close()

    def _machine(self, identity: Identity) -> SimMachine:
        spec = self.spec
        return SimMachine(
            self.site, identity, spec.hardware, latency_s=spec.latency_s, pace=spec.pace, seen=self._answered_in
        )

    def _answered_in(self, latency_s: float) -> None:
        self._answered += 1
        self._latencies.append(latency_s)

    def _connect(self, numbers: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        for place, number in enumerate(numbers):
            if number not in self._tasks:
                self._tasks[number] = loop.create_task(self._run(number, place / STARTS_A_SECOND))

    async def _run(self, number: int, after_s: float) -> str:
        await asyncio.sleep(after_s)
        return await self._machines[number].run()

    async def _cut(self, numbers: Sequence[int]) -> None:
        tasks = [self._tasks.pop(number) for number in numbers if number in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def all_connected(self, deadline_s: float = 120.0) -> float:
        """Wait until every machine that is not cut off or removed has a session; return how long that took, in s."""
        began = time.monotonic()
        while any(not self._machines[n].link.connected for n, task in self._tasks.items() if not task.done()):
            if time.monotonic() - began > deadline_s:
                raise TimeoutError(f"{self.stats().connected} of {len(self._tasks)} machines are connected")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    # -- what may happen --------------------------------------------------------------------

    def rack(self, number: int) -> range:
        """Return the machines of one rack, the first is 0."""
        size = self.spec.rack_size
        return range(number * size, min((number + 1) * size, len(self._machines)))

    async def lose_rack(self, number: int) -> None:
        """Cut a rack off: its machines fall silent, their work goes on."""
        await self._cut(self.rack(number))

    def rack_back(self, number: int) -> None:
        self._connect(self.rack(number))

    async def reconnect_storm(self, deadline_s: float = 120.0) -> float:
        """Drop every session at once; return how long it takes until all are back, in s."""
        for machine in self._machines:
            machine.link.drop()
        return await self.all_connected(deadline_s)

    def fault_storm(self, percent: int) -> int:
        """Break the first GPU of so many of the machines, in turn in each way there is; return how many that are."""
        kinds = list(FaultKind)
        able = [machine for machine in self._machines if machine.has_gpus]
        hit = able[: len(able) * percent // 100]
        for number, machine in enumerate(hit):
            machine.break_gpu(0, kinds[number % len(kinds)])
        return len(hit)

    def forget_latencies(self) -> None:
        """Measure anew from here."""
        self._latencies.clear()

    def stats(self) -> Stats:
        latencies = sorted(self._latencies)
        return Stats(
            machines=len(self._machines),
            connected=sum(machine.link.connected for machine in self._machines),
            removed=sum(t.done() and not t.cancelled() and t.exception() is None for t in self._tasks.values()),
            reports_sent=sum(machine.sent for machine in self._machines),
            reports_answered=self._answered,
            allocations=sum(len(machine.work.reports()) for machine in self._machines),
            ack_p50_ms=_at(latencies, 0.5),
            ack_p99_ms=_at(latencies, 0.99),
            ack_max_ms=_at(latencies, 1.0),
        )


def _at(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted latencies lie, in ms; 0 when there are none."""
    if not ordered:
        return 0.0
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


async def run_fleet(
    site: Site,
    spec: FleetSpec,
    tokens: TokenSource,
    tell: Callable[[Stats], Awaitable[None] | None],
    every_s: float = 10.0,
) -> None:
    """Join a fleet and keep it running until cancelled; `tell` gets the figures every `every_s` seconds.

    A process that does nothing else calls `tune` first.
    """
    fleet = Fleet(site, spec)
    await fleet.join(tokens)
    async with fleet.running():
        if spec.faulty_percent:
            await fleet.all_connected()
            fleet.fault_storm(spec.faulty_percent)
        while True:
            await asyncio.sleep(every_s)
            told = tell(fleet.stats())
            if told is not None:
                await told


def tune() -> None:
    """Fit this process for many machines: all the sockets it may have, fewer collector runs, one voice."""
    # What each of a thousand links would say of a reconnect storm is in the figures.
    logging.getLogger("corral.agent").setLevel(logging.ERROR)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
