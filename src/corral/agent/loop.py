"""The agent: observe, report, converge (design, "Three walks", 1 and 2).

Puts the parts together. All of it lives in one asyncio loop; drivers and probes are called in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import corral
from corral.agent.calls import Calls
from corral.agent.converge import Converger
from corral.agent.data_location import DataKeeper
from corral.agent.inventory.gpus import PREFIX
from corral.agent.inventory.probe_messages import ProbeStatus
from corral.agent.kernel_log import KernelLog
from corral.agent.link import Link, Pace
from corral.agent.observe import Observation, Observer, Ours, one_of_each
from corral.agent.site import Site
from corral.agent.state import (
    DATA_LOCATION,
    KEY,
    MACHINE,
    TOMBSTONE,
    Machine,
    StateError,
    StateFolder,
    Tombstone,
    Unwritable,
)
from corral.agent.trial import OnTrial
from corral.agent.tunnel import Streams
from corral.agent.update import Updater
from corral.agent.waiting import bounded, cancelled, set_or_after
from corral.agent.work import BootClock
from corral.protocol.gpu_faults import ClearFault, FaultCleared, KernelLine
from corral.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Condition,
    Described,
    Desired,
    Hello,
    OpenStream,
    Report,
    Welcome,
)
from corral.protocol.updates import Update

log = logging.getLogger(__name__)
OBSERVE_EVERY_S = 10.0
HEAR_EVERY_S = 1.0
CLEARING_MOST = 100
FIRST_LOOK_S = 10.0
"""The session waits so long for the first look at GPUs and containers."""
UNANSWERED_S = 15.0
"""A release on trial that no site has answered for so long says that it goes on: its network may be away."""


@dataclass(frozen=True)
class Process:
    """Which agent process this is. `instance` is random and never stored: a copy of the folder cannot have it."""

    boot_id: str
    pid: int = field(default_factory=os.getpid)
    instance: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class Parts:
    """What an agent is made of."""

    state: StateFolder
    machine: Machine
    work: Converger
    observer: Observer
    stream_calls: Calls
    """Threads of their own: an ssh must not wait behind an image that is being pulled."""
    trial: OnTrial | None = None
    """This release is on trial: an older one watches over it."""
    data: DataKeeper | None = None
    """None: there is no data location, whatever the site wants."""
    kernel: KernelLog = field(default_factory=lambda: KernelLog(None))


class Agent:
    """The `Peer` of the link."""

    def __init__(self, parts: Parts, site: Site, key: str, pace: Pace = Pace()) -> None:
        self._state, self._machine = parts.state, parts.machine
        self.work, self._observer, self._stream_calls = parts.work, parts.observer, parts.stream_calls
        self._process = Process(BootClock().boot_id)
        self._observed = Observation()
        self._looked = asyncio.Event()
        self._answered = asyncio.Event()
        self._trial = parts.trial
        self._kernel = parts.kernel
        self._look = asyncio.Event()
        self._clearing: list[ClearFault] = []
        self._state_trouble = ""
        self.link = Link(site, key, self, pace)
        self.streams = Streams(site, key, parts.work, parts.stream_calls)
        self.updates = Updater(parts.state, site, self.link.report_soon, on_trial=parts.trial is not None)
        self.work.hooks.changed = self.link.report_soon
        self.work.hooks.ending = self.streams.close_allocation
        self._data = parts.data
        if parts.data is not None:
            parts.data.changed = self.link.report_soon
            parts.data.in_use = self.work.drives_in_use

    async def run(self) -> bool:
        """Go on until the machine is removed and all its work has ended; or, returning True, until a newer release is
        ready to take over. Cancelled it ends as well; containers outlive that.
        """
        await self.work.adopt()
        tasks = [self._start(self._observe()), self._start(self.work.supervise())]
        if self._data is not None:
            tasks.append(self._start(self._data.run()))
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await bounded(self._looked.wait(), FIRST_LOOK_S)
            link, update = self._start(self.link.run()), self._start(self.updates.run())
            tasks += [link, update, self._start(self._prove()), self._start(self._hear_the_kernel())]
            # The loops never end by themselves: one that does has a bug, and hiding that would be worse.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if update in done and update.exception() is None:
                return True
            if link not in done:
                raise next(iter(done)).exception() or RuntimeError("a loop of the agent ended")
            await self._removed(link.result(), tasks)
            return False
        finally:
            await cancelled(*tasks)
            await self.streams.close()
            await self.work.close()
            self._kernel.close()

    @staticmethod
    def _start(loop: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(loop)

    async def _removed(self, message: str, tasks: list[asyncio.Task[Any]]) -> None:
        log.warning("this machine was removed: %s; all its work is ended", message)
        await self.streams.close()
        await bury(self._state, Tombstone(self._machine.machine, self._machine.name, message), self.work)

    async def _prove(self) -> None:
        """On trial: say that this release goes on, and that it works once the site has answered it."""
        if self._trial is not None:
            try:
                await bounded(self._answered.wait(), UNANSWERED_S)
            except asyncio.TimeoutError:
                self._trial.runs()
                await self._answered.wait()
            self._trial.works()
        await asyncio.Event().wait()

    # -- observing --------------------------------------------------------------------------

    async def _observe(self) -> None:
        while True:
            self._look.clear()
            clearing, self._clearing = self._clearing, []
            ours = Ours(self.work.allocated_gpus(), self.work.foreign_gpus)
            seen = await asyncio.get_running_loop().run_in_executor(None, self._observer.read, ours)
            if seen.digest != self._observed.digest or seen.conditions != self._observed.conditions:
                self.link.report_soon()
            self._observed = seen
            self._looked.set()
            self._keep_machine()
            self._answer(clearing)
            await set_or_after(self._look, OBSERVE_EVERY_S)

    async def _hear_the_kernel(self) -> None:
        while True:
            if self._kernel.poll():
                self.link.report_soon()
            await asyncio.sleep(HEAR_EVERY_S)

    def _answer(self, clearing: Sequence[ClearFault]) -> None:
        """Say what GPUs that are being cleared look like, by a look that began after that was asked."""
        inventory = self._observed.inventory
        health = {(one.vendor, one.uuid): one for one in (inventory.gpu_health if inventory is not None else ())}
        self._kernel.poll()
        for ask in clearing:
            seen = health.get((ask.vendor, ask.uuid))
            self.link.fault_cleared(FaultCleared(ask.ask, self._process.boot_id, self._kernel.newest, seen))

    def _kernel_lines(self) -> tuple[KernelLine, ...]:
        """Not before the GPUs are known, for a line tells only a slot."""
        inventory = self._observed.inventory
        if inventory is None or inventory.gpu_probe.startswith(PREFIX[ProbeStatus.STARTING]):
            return ()
        return self._kernel.lines()

    def _keep_machine(self) -> None:
        """Write who this machine is again, when the disk refused that before."""
        if self._state_trouble:
            self._save_machine()

    def _save_machine(self) -> None:
        try:
            self._state.write(MACHINE, self._machine)
            self._state_trouble = ""
        except Unwritable as error:
            self._state_trouble = str(error)

    # -- the link's Peer --------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            release=corral.__version__,
            instance=self._process.instance,
            boot_id=self._process.boot_id,
            pid=self._process.pid,
            incarnation=self._machine.incarnation,
        )

    def welcomed(self, welcome: Welcome) -> None:
        if welcome.incarnation != self._machine.incarnation:
            self._machine = replace(self._machine, incarnation=welcome.incarnation)
            self._save_machine()

    def report(self, seq: int, whole: bool) -> Report:
        seen = self._observed
        return Report(
            seq=seq,
            release=corral.__version__,
            boot_id=self._process.boot_id,
            pid=self._process.pid,
            inventory_digest=seen.digest,
            inventory=seen.inventory if whole else None,
            conditions=self._conditions(),
            gpu_telemetry=seen.telemetry,
            cpu_percent=seen.cpu_percent,
            memory_used_mib=seen.memory_used_mib,
            allocations=self.work.reports(),
            disk_free_mib={disk.mount: disk.free_mib for disk in (seen.inventory.disks if seen.inventory else ())},
            data_location=self._data.seen() if self._data is not None else None,
            update=self.updates.report,
            kernel_lines=self._kernel_lines(),
        )

    def _conditions(self) -> tuple[Condition, ...]:
        found = (*self.work.conditions(), *self._observed.conditions)
        if self._observed.inventory is not None and self._observed.inventory.gpus:
            found = (*found, *self._kernel.conditions())
        if self._state_trouble:
            trouble = f"the agent's state cannot be saved: {self._state_trouble}"
            found = (*found, Condition("state_unwritable", trouble))
        return one_of_each(found)

    def acked(self, ack: Ack, latency_s: float) -> Described | None:
        self._answered.set()
        self._kernel.confirmed(ack.kernel_seen)
        self.work.log_seen(ack.log_seen)
        self.work.forget(ack.forget)
        return self.work.describe(ack.describe) if ack.describe else None

    def desired(self, desired: Desired) -> None:
        if self._data is not None:
            self._data.take(desired.data_location)
        self.work.accept(desired)

    def open_stream(self, ask: OpenStream) -> None:
        self.streams.open(ask, self.link.refuse_stream)

    def clear_fault(self, ask: ClearFault) -> None:
        if len(self._clearing) < CLEARING_MOST:
            self._clearing.append(ask)
        self._look.set()

    def update(self, ask: Update) -> None:
        self.updates.want(ask)


async def bury(state: StateFolder, stone: Tombstone, work: Converger) -> None:
    """End all work of a removed machine and forget its credential; a tombstone stays.

    The stone is written first: an agent that dies meanwhile goes on with this, not with its work.
    """
    with contextlib.suppress(StateError):
        state.write(TOMBSTONE, stone)
    with contextlib.suppress(StateError):
        state.remove(KEY)
    await work.end_everything()
    with contextlib.suppress(StateError):
        state.write(TOMBSTONE, replace(stone, done=True))
    for secret in (KEY, MACHINE, DATA_LOCATION):
        # A full disk must not keep the credential alive: each is tried for itself.
        with contextlib.suppress(StateError):
            state.remove(secret)
