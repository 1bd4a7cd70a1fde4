"""Makes what runs on this machine what the site wants (design decisions 1 and 11).

- What runs already is adopted by its label before anything new is taken on.
- An allocation that is missing from the site's list is never stopped for that.
- Containers of another machine's are never touched; the GPUs they hold are reported busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from corral.agent.allocation import Allocation
from corral.agent.backoff import Doubling
from corral.agent.calls import Calls
from corral.agent.data_folder import DriveKey
from corral.agent.drivers.base import Driver, DriverError, Running, RuntimeUnavailable
from corral.agent.fitting import first_that_fit, fitted
from corral.agent.state import Unwritable
from corral.agent.waiting import set_or_after
from corral.agent.work import BootClock, Record, Works, known_id
from corral.protocol.messages import (
    AllocationReport,
    AllocationState,
    Condition,
    Described,
    Desired,
    DesiredAllocation,
)

log = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
UNKNOWN_HERE = "runs here, but this agent has no record of having been told to run it"
HELD_BY_ANOTHER = "held by a container of another machine"


def ignore(*_: object) -> None:
    return


@dataclass
class Hooks:
    """What the machine does when something happens here. All are called in the loop's thread."""

    changed: Callable[[], None] = ignore
    """Worth a report at once."""
    ending: Callable[[str], None] = ignore
    """An allocation's open streams are to be closed."""


@dataclass
class _Listing:
    """The last look at the runtime."""

    others: dict[str, Running] = field(default_factory=dict)
    """Own containers without a record."""
    foreign_gpus: frozenset[str] = frozenset()


class Converger:
    """All allocations of one machine; the `Owner` of each."""

    def __init__(self, machine: str, driver: Driver, works: Works, calls: Calls, clock: BootClock) -> None:
        self.machine = machine
        self.driver, self.calls, self.clock = driver, calls, clock
        self.hooks = Hooks()
        self._works = works
        self._all = {record.want.id: Allocation(record, self) for record in works.load()}
        self._seen = _Listing()
        self._adopted = False
        self._unwritable = ""
        self._runtime_down = ""
        self._look_now = asyncio.Event()
        self._one_look = asyncio.Lock()

    # -- the Owner of each allocation -------------------------------------------------------

    def save(self, record: Record) -> None:
        self._written(lambda: self._works.put(record))

    def changed(self) -> None:
        self.hooks.changed()

    def ending(self, allocation: str) -> None:
        self.hooks.ending(allocation)

    def runtime_down(self, message: str) -> None:
        if message != self._runtime_down:
            self._runtime_down = message
            self.hooks.changed()

    def _written(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Unwritable as error:
            if not self._unwritable:
                log.error("%s", error)
            self._unwritable = str(error)
            raise
        self._unwritable = ""

    # -- what the site tells ----------------------------------------------------------------

    def accept(self, desired: Desired) -> None:
        """Take the site's list. What it leaves out goes on as it is."""
        for want in desired.allocations:
            if not known_id(want.id):
                log.error("the site named an allocation %r; not a name this agent takes", want.id)
                continue
            have = self._all.get(want.id)
            if have is None:
                have = self._all[want.id] = Allocation(Record(replace(want, stop=False, generation=-1)), self)
            have.take(want)
        self._run_all()

    def forget(self, allocations: Iterable[str]) -> None:
        """Drop the record of allocations that have ended and whose end the site has stored."""
        for name in allocations:
            have = self._all.get(name)
            if have is not None and have.ended:
                with contextlib.suppress(Unwritable):
                    self._drop(name)

    def _drop(self, allocation: str) -> None:
        self._written(lambda: self._works.drop(allocation))
        del self._all[allocation]

    def log_seen(self, numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            if name in self._all:
                self._all[name].log_seen(number)

    def describe(self, allocations: Sequence[str]) -> Described:
        """Return what this machine was told of allocations that the site does not know.

        As much as fits into a frame, another part each time: the site asks again for the rest.
        """
        wants = [self._all[name].record.want for name in allocations if name in self._all]
        random.shuffle(wants)
        return Described(first_that_fit(wants))

    # -- what is reported -------------------------------------------------------------------

    def reports(self) -> tuple[AllocationReport, ...]:
        known = [have.report() for have in self._all.values()]
        others = (_unknown(seen) for name, seen in self._seen.others.items() if name not in self._all)
        return fitted((*known, *others))

    def conditions(self) -> tuple[Condition, ...]:
        found = []
        if self._runtime_down:
            found.append(Condition("runtime_unavailable", self._runtime_down))
        if self._unwritable:
            found.append(Condition("state_unwritable", f"the agent's state cannot be saved: {self._unwritable}"))
        return tuple(found)

    def allocated_gpus(self) -> frozenset[str]:
        """Return the GPUs of allocations that are not gone, and of own containers without a record."""
        live = (have.record.want.gpus for have in self._all.values() if not have.ended)
        return frozenset(uuid for gpus in (*live, *(seen.gpus for seen in self._seen.others.values())) for uuid in gpus)

    def drives_in_use(self) -> frozenset[DriveKey]:
        """Return the drives of allocations that are not gone."""
        live = (have.record.want for have in self._all.values() if not have.ended)
        return frozenset(DriveKey(want.org, want.workspace, name) for want in live for name in want.drives)

    @property
    def foreign_gpus(self) -> frozenset[str]:
        """GPUs in containers that carry another machine's id."""
        return self._seen.foreign_gpus

    def running(self, allocation: str, generation: int) -> DesiredAllocation | None:
        """Return what was wanted of an allocation that runs here; None when no stream may go into it.

        An ask made for an older generation stands: keys are checked by sshd itself, live.
        """
        have = self._all.get(allocation)
        if not self._adopted or have is None or not have.running or generation > have.record.want.generation:
            return None
        return have.record.want

    # -- looking at the runtime -------------------------------------------------------------

    async def adopt(self) -> bool:
        """Take over what runs here already; return False when the runtime does not answer."""
        if not self._adopted and await self.look():
            self._run_all()
        return self._adopted

    async def supervise(self, every_s: float = LOOK_EVERY_S) -> None:
        """Look again and again, for ever."""
        wait = Doubling(0.5, every_s)
        while True:
            if await (self.look() if self._adopted else self.adopt()):
                wait.reset()
                delay = every_s
            else:
                delay = wait.next()
            self._run_all()  # a task that died of a bug comes back
            for have in list(self._all.values()):
                have.keep()
            await set_or_after(self._look_now, delay)
            self._look_now.clear()

    def look_soon(self) -> None:
        """Something went wrong with a container: look now, not at the next round."""
        self._look_now.set()

    async def look(self) -> bool:
        """Compare what runs with what should; return False when the runtime does not answer."""
        async with self._one_look:
            began = self.clock.now()
            try:
                listing = await self.calls.run(self.driver.list_running)
            except RuntimeUnavailable as error:
                self.runtime_down(error.message)
                return False
            except DriverError as error:
                self.runtime_down(f"the container runtime cannot list its containers: {error.message}")
                return False
            except Exception:
                log.exception("listing containers failed unexpectedly")
                self.runtime_down("the container runtime cannot be asked; see the agent's log")
                return False
            self.runtime_down("")
            self._compare(listing, began)
            return True

    def _compare(self, listing: Sequence[Running], began: float) -> None:
        mine = {seen.allocation: seen for seen in listing if seen.machine == self.machine}
        foreign = frozenset(u for seen in listing if seen.machine != self.machine for u in seen.gpus)
        others = {name: seen for name, seen in mine.items() if name not in self._all}
        if foreign != self._seen.foreign_gpus or others != self._seen.others:
            self.hooks.changed()
        self._seen = _Listing(others, foreign)
        for name, have in self._all.items():
            if not self._adopted:
                have.found(mine.get(name))
            elif have.up_since < began:
                have.look(mine.get(name))
        self._adopted = True

    def _run_all(self) -> None:
        if self._adopted:
            for have in self._all.values():
                have.run()

    # -- the end ----------------------------------------------------------------------------

    async def end_everything(self) -> None:
        """This machine was removed: end all its work. Returns when none of its containers is left."""
        while not await self.adopt():
            await asyncio.sleep(1)
        await self.look()
        for name in self._seen.others:
            if name not in self._all:
                self._all[name] = Allocation(Record(_nameless(name)), self)
        self.accept(Desired(tuple(replace(a.record.want, stop=True) for a in self._all.values() if not a.ended)))
        for have in list(self._all.values()):
            await have.ended_for_good()

    async def close(self) -> None:
        """End the tasks; containers go on."""
        for have in self._all.values():
            await have.close()


def _unknown(seen: Running) -> AllocationReport:
    state = AllocationState.RUNNING if seen.running else AllocationState.RESTARTING
    return AllocationReport(
        id=seen.allocation,
        generation=0,
        state=state,
        message=UNKNOWN_HERE,
        gpus=seen.gpus,
        oom_kills=seen.oom_kills,
        exit_code=seen.exit_code,
        container=seen.container,
    )


def _nameless(allocation: str) -> DesiredAllocation:
    """Return a want that serves only to be stopped: of an allocation without a record."""
    return DesiredAllocation(
        id=allocation, generation=0, stop=False, kind="", org="", workspace="", workload="", name="", image="",
        gpus=(), vcpu=0, ram_mib=0, storage_mib=0,
    )  # fmt: skip
