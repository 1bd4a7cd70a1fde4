"""One allocation on this machine, converged by its own task (design decisions 1 and 9).

Level-triggered: the task looks at what is wanted and at what is, and takes one step; whatever
went wrong, the next look decides again. It ends only by an explicit stop, by its time limit,
or because it could not be started the first time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from corral.agent.backoff import Doubling
from corral.agent.calls import Calls
from corral.agent.drivers.base import Driver, DriverError, Running, RuntimeUnavailable, Started
from corral.agent.inventory.files import printable
from corral.agent.provisioning_log import LOG_LINE, ProvisioningLog
from corral.agent.restarts import Restarts, what_happened
from corral.agent.state import Unwritable
from corral.agent.time_limit import TimeLimit
from corral.agent.waiting import cancelled, set_or_after
from corral.agent.work import LOG_BLOCK, BootClock, End, Record
from corral.protocol.messages import AllocationReport, AllocationState, DesiredAllocation, Step

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_START_TRIES = 8
"""A first start that fails for a passing reason is given up after so many tries (about 90 s)."""
RETRY_FIRST_S, RETRY_CAP_S = 1.0, 30.0
TAIL_BYTES = 16 * 1024
OUT_OF_TIME = "its time limit is over"


class Owner(Protocol):
    """What an allocation needs of the machine it is on."""

    driver: Driver
    calls: Calls
    clock: BootClock

    def save(self, record: Record) -> None:
        """Keep a record; when the disk refuses, say so, and try again later. Errors: `Unwritable`."""
        ...

    def changed(self) -> None:
        """Something worth a report at once."""
        ...

    def ending(self, allocation: str) -> None:
        """Its open streams are to be closed now."""
        ...

    def runtime_down(self, message: str) -> None: ...


class _Overtaken(DriverError):
    """The start that goes on is not wanted any more."""


@dataclass
class _Seen:
    """What the container shows."""

    oom_kills: int = 0
    exit_code: int | None = None


class Allocation:
    """One allocation: its record, its task, and what is reported of it."""

    def __init__(self, record: Record, owner: Owner) -> None:
        self.record = record
        self._owner = owner
        self._up = False
        self._applied: DesiredAllocation | None = None
        self._state = AllocationState.RESTARTING if record.ran else AllocationState.PREPARING
        self._step: Step | None = None
        self._message = record.message
        self._seen = _Seen(exit_code=record.exit_code)
        self._log = ProvisioningLog(record.log_reserved)
        self._limit = TimeLimit(owner.clock, record.timer)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._retry = Doubling(RETRY_FIRST_S, RETRY_CAP_S)
        self._start_tries = 0
        self._failure = ""
        """Why its first start cannot work."""
        self._restarts = Restarts(owner.clock.now, RETRY_FIRST_S, 2 * RETRY_CAP_S)
        self._durable = True

    # -- what others ask --------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.want.id

    @property
    def ended(self) -> bool:
        """It is gone or failed, and nothing of it is left on this machine."""
        return self.record.end is not None

    @property
    def up_since(self) -> float:
        """Boot clock at which its container was last known to have been started."""
        return self._restarts.up_since

    @property
    def running(self) -> bool:
        """It was started and verified, and its container was there at the last look."""
        return self._up and not self.ended and not self.must_end

    @property
    def must_end(self) -> bool:
        """Told to stop, or out of time."""
        return self.record.want.stop or self._limit.is_over

    def report(self) -> AllocationReport:
        record, state = self.record, self._state
        if record.end is not None:
            state = AllocationState(record.end.value)
        running = state is AllocationState.RUNNING
        return AllocationReport(
            id=record.want.id,
            generation=record.applied if running else record.want.generation,
            state=state,
            step=self._step if state is AllocationState.PREPARING else None,
            message=self._message,
            # Before its first start it has none, but they are promised to it.
            gpus=record.gpus or (record.want.gpus if state is AllocationState.PREPARING else ()),
            host_key=record.host_key,
            oom_kills=record.oom_kills + self._seen.oom_kills,
            exit_code=self._seen.exit_code,
            restarts=record.restarts,
            container=record.container,
            log=self._log.to_send(),
            log_tail=record.log_tail if record.end is not None else "",
        )

    # -- what others tell -------------------------------------------------------------------

    def take(self, want: DesiredAllocation) -> None:
        """Take what the site wants now. Older generations are stale; a stop is never taken back."""
        had = self.record.want
        if want.generation < had.generation or (had.stop and not want.stop):
            return
        timer = self._limit.set(want.seconds_left, self.record.timer)
        record = replace(self.record, want=replace(want, seconds_left=None), timer=timer)
        if record.end is End.FAILED and want.stop:
            # Everything was removed when it failed; what was asked now is so already.
            record = replace(record, end=End.GONE)
        if record == self.record:
            return
        self.record = record
        self._save()
        if want.stop:
            self._owner.ending(self.id)
        self._owner.changed()
        self._wake.set()

    def log_seen(self, number: int) -> None:
        """Lines up to `number` are stored at the site."""
        self._log.seen(number)

    def found(self, seen: Running | None) -> None:
        """Take over what an agent before this one left: its container, or that there is none."""
        if self.ended:
            return
        if self.record.ran and seen is not None and seen.running:
            self._up, self._state, self._message = True, AllocationState.RUNNING, ""
            self._restarts.started()
            self._look(seen)
        elif self.record.ran and not self.must_end:
            self._lost(seen)

    def look(self, seen: Running | None) -> None:
        """Compare with what the runtime shows now; a container that is not there any more is started again."""
        if not self._up or self._state is not AllocationState.RUNNING or self.ended:
            return
        if seen is not None and seen.running:
            self._look(seen)
            return
        self._up = False
        self._owner.ending(self.id)
        self._lost(seen)

    def _look(self, seen: Running) -> None:
        if seen.oom_kills != self._seen.oom_kills:
            self._seen.oom_kills = seen.oom_kills
            self._owner.changed()

    def _lost(self, seen: Running | None) -> None:
        kills = max(self._seen.oom_kills, seen.oom_kills if seen else 0)
        self._seen = _Seen(exit_code=seen.exit_code if seen else None)
        message = what_happened(seen, kills)
        record = self.record
        self.record = replace(
            record, restarts=record.restarts + 1, oom_kills=record.oom_kills + kills, exit_code=self._seen.exit_code
        )
        self._restarts.gone()
        self._state, self._message = AllocationState.RESTARTING, message
        self._say(message)
        self._save()
        self._owner.changed()
        self._wake.set()

    # -- its task ---------------------------------------------------------------------------

    def run(self) -> None:
        """Have its task run, if there is anything left to do."""
        if not self.ended and (self._task is None or self._task.done()):
            self._say_why_it_died()
            self._task = asyncio.get_running_loop().create_task(self._converge())

    def _say_why_it_died(self) -> None:
        error = None if self._task is None or self._task.cancelled() else self._task.exception()
        if error is not None:
            log.error("allocation %s: its task ended unexpectedly; it goes on", self.id, exc_info=error)

    async def close(self) -> None:
        """End its task; its container goes on."""
        if self._task is not None:
            await cancelled(self._task)

    async def ended_for_good(self) -> None:
        """Wait until it is gone or failed."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _converge(self) -> None:
        while not self.ended:
            self._wake.clear()
            try:
                await self._step_once()
                self._retry.reset()
            except _Overtaken:
                continue
            except RuntimeUnavailable as error:
                self._owner.runtime_down(error.message)
                await self._again(f"waiting for the container runtime: {error.message}")
            except Unwritable as error:
                await self._again(f"not started yet: {error}")
            except DriverError as error:
                await self._again(error.message)

    async def _step_once(self) -> None:
        if self.must_end:
            await self._finish()
        elif self._failure:
            await self._clean_up()
        elif not self._up and (wait_s := self._restarts.wait_s()) > 0:
            await self._sleep(wait_s)
        elif not self._up:
            await self._start()
        elif self._applied != self.record.want:
            await self._update()
        else:
            await self._sleep(self._limit.left_s())

    async def _again(self, message: str) -> None:
        """Say why a step did not work and wait a while, or until something else is wanted."""
        text = printable(message, LOG_LINE)
        if text != self._message:
            self._message = text
            self._say(text)
            self._owner.changed()
        await self._sleep(self._retry.next())

    async def _sleep(self, seconds: float | None) -> None:
        until_end = self._limit.left_s() if not self.must_end else None
        waits = [w for w in (seconds, until_end) if w is not None]
        await set_or_after(self._wake, min(waits) if waits else None)

    async def _call(self, call: Callable[..., T], *args: object) -> T:
        """Call the driver in its thread. Whatever it raises comes as a `DriverError`."""
        try:
            return await self._owner.calls.run(call, *args)
        except DriverError:
            raise
        except Exception as error:
            # A driver's bug is this allocation's trouble, not the agent's end.
            log.exception("allocation %s: the driver failed unexpectedly", self.id)
            raise DriverError(f"unexpected {type(error).__name__} in the agent; see its log", retry=True) from error

    async def _start(self) -> None:
        if not self._durable:
            self._owner.save(self.record)
            self._durable = True
        want = self.record.want
        try:
            started = await self._call(self._owner.driver.start, want, self._progress)
        except RuntimeUnavailable:
            raise
        except DriverError as error:
            self._start_tries += 1
            passing = error.retry and self._start_tries < FIRST_START_TRIES
            if self.must_end or self.record.ran or passing:
                raise
            self._failure = printable(error.message, LOG_LINE)
            self._say(self._failure)
        else:
            self._started(want, started)

    def _started(self, want: DesiredAllocation, started: Started) -> None:
        self._up, self._applied = True, want
        self._restarts.started()
        self._state, self._step, self._message = AllocationState.RUNNING, None, ""
        self._seen.exit_code, self._start_tries = None, 0
        self.record = replace(
            self.record,
            ran=True,
            applied=want.generation,
            gpus=started.gpus,
            host_key=started.host_key,
            container=started.container,
            message="",
            exit_code=None,
        )
        self._say("running")
        self._save()
        self._owner.changed()

    def _progress(self, step: Step, line: str) -> None:
        """Called in the driver's thread. Gives up a start that is not wanted any more."""
        if self.must_end:
            raise _Overtaken("not wanted any more", retry=True)
        self._owner.calls.post(self._note, step, line)

    def _note(self, step: Step, line: str) -> None:
        if line:
            self._say(line)
        if self._state is AllocationState.PREPARING and step is not self._step:
            self._step, self._message = step, ""
        self._owner.changed()

    async def _update(self) -> None:
        want = self.record.want
        await self._call(self._owner.driver.update, want)
        self._applied, self._message = want, ""
        self.record = replace(self.record, applied=want.generation)
        self._save()
        self._owner.changed()

    async def _clean_up(self) -> None:
        """After a first start that cannot work: take away what was made for it, then say that it failed."""
        self._message = f"could not be started: {self._failure}; cleaning up"
        self._owner.changed()
        await self._take_away()
        self._close(End.FAILED, self._failure)

    async def _finish(self) -> None:
        out_of_time = not self.record.want.stop
        if self._state is not AllocationState.STOPPING:
            self._state, self._message = AllocationState.STOPPING, OUT_OF_TIME if out_of_time else ""
            self._owner.ending(self.id)
            self._owner.changed()
        await self._call(self._owner.driver.stop, self.id, self.record.want.stop_grace_s)
        await self._take_away()
        self._close(End.GONE, OUT_OF_TIME if out_of_time else "")

    async def _take_away(self) -> None:
        tail = await self._call(self._owner.driver.log_tail, self.id, TAIL_BYTES)
        if tail:
            self.record = replace(self.record, log_tail=tail.decode("utf-8", "replace"))
        await self._call(self._owner.driver.remove, self.id)

    def _close(self, end: End, message: str) -> None:
        self._up, self._message = False, message
        self.record = replace(self.record, end=end, message=message, exit_code=self._seen.exit_code)
        self._save()
        self._owner.changed()

    # -- keeping ----------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        """Add a line to its provisioning log."""
        number = self._log.add(line)
        if number > self.record.log_reserved:
            self.record = replace(self.record, log_reserved=number + LOG_BLOCK)
            self._save()

    def _save(self) -> None:
        try:
            self._owner.save(self.record)
            self._durable = True
        except Unwritable:
            self._durable = False

    def keep(self) -> None:
        """Write what the disk refused before; note what is left of a time limit, for a reboot."""
        timer = self._limit.noted(self.record.timer)
        if timer is not self.record.timer and not self.ended:
            self.record = replace(self.record, timer=timer)
            self._save()
        if not self._durable:
            self._save()
