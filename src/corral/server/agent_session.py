"""One machine's open session: frames in, acks and what should run out (spec 40, "Reporting").

A report that repeats the last one is acked from memory and touches no database. Of the others
one is at work at a time, and while it is, only the newest waits: older ones say nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect
from structlog import get_logger

from corral.domain.allocations import Desired, Outcome
from corral.domain.data_location import Wanted
from corral.domain.errors import Refusal
from corral.domain.sessions import Opened
from corral.domain.updates import Ask
from corral.protocol import gpu_faults as wire_faults
from corral.protocol import messages as wire
from corral.server import agent_codec as codec
from corral.server.budget import Budget
from corral.server.kernel_news import KernelNews
from corral.store.transaction import Tx
from corral.usecases import data_location, reports, sessions, updates

if TYPE_CHECKING:
    from corral.server.agents import Hub

log = get_logger()

SEND_WITHIN_S = 10.0
TRY_AGAIN_S = 5.0
FRAMES_BURST, FRAMES_A_SECOND = 60.0, 10.0
"""An agent reports every 10 s and when something changed; more than this is no agent of ours."""
BYTES_BURST, BYTES_A_SECOND = 8.0 * 2**20, 2.0**20

CLOSES = {
    "MACHINE_REMOVED": wire.CLOSE_REMOVED,
    "CONFLICT": wire.CLOSE_SUPERSEDED,
    "UNAUTHENTICATED": wire.CLOSE_UNAUTHORIZED,
    "PROTOCOL_TOO_OLD": wire.CLOSE_TOO_OLD,
}
CLOSE_FAULT = 1011


@dataclass(frozen=True)
class Telemetry:
    """What a machine's last report said of its use: in memory only."""

    cpu_percent: float
    memory_used_mib: int
    gpus: tuple[wire.GpuTelemetry, ...]
    disk_free_mib: Mapping[str, int]
    """By mount."""


class Session:
    """From its hello to its end. Lives on the loop; `hear_again` may be called from any thread."""

    __slots__ = (
        "_budgets",
        "_hub",
        "_kernel",
        "_news",
        "_outcome",
        "_push_again",
        "_pusher",
        "_repeats",
        "_running",
        "_seq",
        "_waiting",
        "_worker",
        "_ws",
        "dropped",
        "last_frame",
        "opened",
        "task",
        "telemetry",
    )

    def __init__(self, hub: Hub, ws: WebSocket, opened: Opened) -> None:
        self.opened = opened
        self.telemetry: Telemetry | None = None
        self.last_frame = time.monotonic()
        self.task = asyncio.current_task()
        self.dropped = False
        self._hub = hub
        self._ws = ws
        self._seq = 0
        self._news = object()
        """Another one each time there is a reason to take the next report in whatever it says."""
        self._kernel = KernelNews()
        self._repeats: int | None = None
        """Fingerprint of the report that was taken in last."""
        self._outcome = reports.Processed(Outcome(), need_inventory=False)
        self._running: frozenset[str] | None = None
        """What its newest report that was taken in says is running; None before the first."""
        self._waiting: wire.Report | None = None
        self._worker: asyncio.Task[None] | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._push_again = False
        self._budgets = (Budget(FRAMES_BURST, FRAMES_A_SECOND), Budget(BYTES_BURST, BYTES_A_SECOND))

    async def run(self) -> None:
        """Serve frames until the session ends."""
        try:
            while True:
                message = await self._ws.receive()
                if message["type"] != "websocket.receive":
                    return
                await self._frame(message.get("text") or message.get("bytes") or "")
        except codec.BadFrame as error:
            log.warning("agent_frame_refused", machine=self.opened.machine_id, why=str(error))
            await self.end(wire.CLOSE_BAD_FRAME, str(error))
        except Refusal as refusal:
            await self.refuse(refusal)
        finally:
            for job in (self._worker, self._pusher):
                if job is not None:
                    job.cancel()

    def hear_again(self) -> None:
        """Take the next report in even if it repeats the last: what it is compared with has changed."""
        self._news = object()
        self._repeats = None

    def push(self) -> None:
        """Send what should run, soon; asks that come meanwhile are one. Nothing before the first report."""
        if self._running is None:
            return
        self._push_again = True
        if self._pusher is None:
            self._pusher = asyncio.ensure_future(self._push())

    async def send(self, kind: str, body: object) -> None:
        """Send a frame. A machine that does not read is let go of."""
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._ws.send_text(codec.encode(kind, body))
        except TimeoutError:
            self.drop()
            raise WebSocketDisconnect(CLOSE_FAULT, "the machine does not read") from None

    async def refuse(self, refusal: Refusal) -> None:
        """End for a rule's no; a removed machine is told so first."""
        if refusal.code == "MACHINE_REMOVED":
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self.send("removed", wire.Removed(refusal.message))
        await self.end(CLOSES.get(refusal.code, CLOSE_FAULT), refusal.message)

    async def end(self, code: int, reason: str) -> None:
        await close(self._ws, code, reason)

    def drop(self) -> None:
        """End without a word: nothing more can be sent."""
        self.dropped = True
        if self.task is not None:
            self.task.cancel()

    # ---- frames

    async def _frame(self, frame: str | bytes) -> None:
        self.last_frame = time.monotonic()
        frames, size = self._budgets
        if not frames.take(1) or not size.take(len(frame)):
            raise codec.BadFrame("too many frames, or too much, in a short time")
        message = codec.decode(frame)
        if isinstance(message, wire.Report):
            await self._report(message)
        elif isinstance(message, wire.Described):
            await self._described(codec.described(message))
        elif isinstance(message, wire.StreamRefused):
            self._hub.stream_refused(self.opened.machine_id, message)
        elif isinstance(message, wire_faults.FaultCleared):
            if self._hub.clearing.answered(self, message):
                self._kernel.forget()
        elif isinstance(message, wire.Hello):
            raise codec.BadFrame("a session says hello once")

    async def _report(self, said: wire.Report) -> None:
        if said.seq <= self._seq:
            raise codec.BadFrame(f"report {said.seq} came after {self._seq}")
        self._seq = said.seq
        if not self._hub.is_current(self):
            raise Refusal("CONFLICT", sessions.SUPERSEDED)
        self._hub.heard.note(self.opened.machine_id)
        self.telemetry = Telemetry(
            said.cpu_percent, said.memory_used_mib, said.gpu_telemetry, codec.disk_free(said.disk_free_mib)
        )
        if self._worker is None and not self._is_news(said):
            await self._ack(said.seq)
            return
        codec.report(said)  # refuses a bad one before it waits
        self._waiting = said
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._take_in())

    def _is_news(self, said: wire.Report) -> bool:
        # An end is taken in until the agent forgets it: what it means may depend on the time.
        if said.inventory is not None or codec.has_ends(said) or codec.fingerprint(said) != self._repeats:
            return True
        return bool(said.kernel_lines) and self._kernel.due(said)

    async def _take_in(self) -> None:
        """Take in the report that waits, and the newest that came meanwhile, until none waits."""
        try:
            while (said := self._waiting) is not None:
                self._waiting = None
                await self._take_in_one(said)
        except Refusal as refusal:
            await self.refuse(refusal)
        except (RuntimeError, WebSocketDisconnect):
            pass  # it left; its next session says all of it again
        except Exception:
            # Not acked, so it counts for nothing: the next report is taken in whatever it says.
            log.exception("report_not_taken_in", machine=self.opened.machine_id)
            self._repeats = None
        finally:
            self._worker = None

    async def _take_in_one(self, said: wire.Report) -> None:
        news = self._news
        done = await self._hub.act(self.opened, lambda tx: reports.receive(tx, self.opened, codec.report(said)))
        self._outcome = done
        self._kernel.judged(said, done.kernel)
        if not done.outcome.describe:
            self._hub.heard.settle(self.opened.machine_id)
        if self._news is news:
            self._repeats = codec.fingerprint(said)
        await self._ack(said.seq, done.outcome.describe)
        before, self._running = self._running, codec.running_in(said)
        if before is None or (done.quarantined and before != self._running):
            self.push()

    async def _ack(self, seq: int, describe: object = ()) -> None:
        # A repeated report gets the last answer again, but is not asked again to describe the same.
        outcome = self._outcome.outcome
        again = Outcome(outcome.log_seen, outcome.describe if describe else (), outcome.forget)
        await self.send("ack", codec.ack(seq, again, self._outcome.need_inventory, self._outcome.kernel.seen))

    async def _described(self, works: list[Desired]) -> None:
        asked = frozenset(self._outcome.outcome.describe)
        try:
            await self._hub.act(self.opened, lambda tx: reports.described(tx, self.opened, works, asked))
        except Refusal:
            raise
        except Exception:
            # Nothing was taken in: the next report is, and asks for it again.
            log.exception("description_not_taken_in", machine=self.opened.machine_id)
        else:
            self._hub.heard.settle(self.opened.machine_id)  # what could not be adopted is held by the quarantine
        self.hear_again()

    def _told(self, tx: Tx) -> tuple[Sequence[Desired], Wanted | None, Ask | None]:
        works = sessions.told(tx, self.opened, self._running or ())
        ask = updates.told(tx, self.opened, self._hub.artefact.release)
        return works, data_location.wanted(tx, self.opened.machine), ask

    async def _push(self) -> None:
        try:
            while self._push_again:
                self._push_again = False
                works, location, ask = await self._hub.ask(self._told)
                await self.send("desired", codec.desired(works, location))
                if ask is not None:
                    made = await asyncio.to_thread(self._hub.artefact.get)
                    await self.send("update", codec.update(ask, made))
        except (RuntimeError, WebSocketDisconnect):
            pass  # it left; its next session is told all of it again
        except Exception:
            log.exception("desired_not_sent", machine=self.opened.machine_id)
            asyncio.get_running_loop().call_later(TRY_AGAIN_S, self.push)
        finally:
            self._pusher = None


async def close(ws: WebSocket, code: int, reason: str) -> None:
    """Close with a reason for people (a close frame holds 123 bytes); one that is closed already stays so."""
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(SEND_WITHIN_S):
            await ws.close(code, reason.encode()[:120].decode(errors="ignore"))
