"""The agents' sessions of this process (spec 40, "Joining", "Reporting"; design decisions 3 and 8).

Who may open one is said before the upgrade, as plain HTTP: 401 for an unknown key (work goes
on), 410 `MACHINE_REMOVED` for a removed machine, 503 with `Retry-After` when too many come at
once, or when none can be opened (a database that takes no writes). After the upgrade only this
session's own faults end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect
from structlog import get_logger

from corral.controllers.batches import Batches
from corral.controllers.heard import Heard
from corral.domain.errors import Refusal
from corral.domain.secrets import hashed
from corral.domain.sessions import Hello, Opened
from corral.protocol import messages as wire
from corral.server import agent_codec as codec
from corral.server.agent_session import CLOSE_FAULT, CLOSES, Session, Telemetry, close
from corral.server.artefact import ArtefactStore
from corral.server.clearing import Clearing
from corral.server.config import Config
from corral.server.door import bearer
from corral.server.errors import deny
from corral.server.rate_limit import RateLimit
from corral.store import fleet
from corral.store.database_errors import is_unable
from corral.store.engine import Database
from corral.store.transaction import Signal, Tx, Wake
from corral.usecases import sessions
from corral.usecases.faults import Answered, ToClear

log = get_logger()
T = TypeVar("T")

READERS = 4
MAX_WAITING = 1_000
"""Newcomers, or acts of machines, that wait; beyond it more newcomers are told to come again."""
COME_AGAIN_S = (5, 30)
HELLO_WITHIN_S = 10.0
SILENT_CLOSES_S = 90.0
"""Without a frame for so long its connection is dead: a live agent reports every 10 s."""
BEAT_EVERY_S = 1.0
SHUT_FOR_S = 30.0
"""After the database could not open a session; then the next newcomer tries it again."""
FIRST_REPORTS_A_SECOND = 50
"""First reports of new sessions are spread to about so many: what a few machines say first need not wait."""
CLOSE_RESTARTING = 1012
SESSIONS_BURST, SESSIONS_A_SECOND = 20, 0.2
"""Of one key: an agent that lost its session comes back every few seconds at first, then slower."""
REFUSED_BURST, REFUSED_A_SECOND = 300, 5.0
"""Unknown keys of one address: a whole fleet may stand behind one, and what runs in its containers."""
MAX_DOUBTED = 100
"""Newcomers of addresses beyond that, of all that may wait: their keys are looked up one at a time."""
KEYS_REMEMBERED = 100_000

_chance = random.SystemRandom()


class Hub:
    """Every open session by machine. `on_stream_refused(machine, stream, message)` is set by the streams."""

    def __init__(self, db: Database, batches: Batches, heard: Heard, config: Config, artefact: ArtefactStore) -> None:
        self.heard = heard
        self.artefact = artefact
        self.clearing = Clearing()
        self.on_stream_refused: Callable[[str, str, str], None] | None = None
        self._db = db
        self._batches = batches
        self._config = config
        self._sessions: dict[str, Session] = {}
        self._newcomers = 0
        self._doubted = 0
        self._one_doubted = asyncio.Semaphore(1)
        self._unable_at = -math.inf
        """When the database could not open the newest session that was asked for, monotonic; never: it could."""
        self._removals = 0
        """Counts removed machines, for who is not among the sessions yet."""
        self._by_key = RateLimit(SESSIONS_BURST, SESSIONS_A_SECOND, remembered=KEYS_REMEMBERED)
        self._by_address = RateLimit(REFUSED_BURST, REFUSED_A_SECOND)
        self._jobs: set[asyncio.Task[None]] = set()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="agents")

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._db.subscribe(self._on_commit)
        self._job(self._beat())

    async def stop(self) -> None:
        self._unsubscribe()
        await asyncio.gather(
            *(session.end(CLOSE_RESTARTING, "the control plane restarts") for session in list(self._sessions.values()))
        )
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._readers.shutdown()

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- for the other parts

    def connected(self, machine_id: str) -> bool:
        """Whether the machine has an open session here."""
        return machine_id in self._sessions

    def telemetry(self, machine_id: str) -> Telemetry | None:
        """Return what the machine's last report said of its use; None when it is not connected."""
        session = self._sessions.get(machine_id)
        return session.telemetry if session else None

    async def ask_stream(self, machine_id: str, ask: wire.OpenStream) -> None:
        """Ask a machine to dial a stream back. Errors: `MACHINE_UNREACHABLE`."""
        session = self._sessions.get(machine_id)
        try:
            if session is not None:
                await session.send("open_stream", ask)
                return
        except (RuntimeError, WebSocketDisconnect):
            pass
        raise Refusal(
            "MACHINE_UNREACHABLE", "The machine has no open session now. It comes back by itself; try again then."
        )

    async def clear_fault(self, what: ToClear) -> Answered:
        """Have a machine acknowledge that a GPU's fault is cleared. Errors: `NODE_NOT_CONNECTED`."""
        return await self.clearing.ask(self._sessions.get(what.machine.id), what)

    def push(self, machine_id: str) -> None:
        """Send a machine what should run there, if it is connected."""
        session = self._sessions.get(machine_id)
        if session is not None:
            session.push()

    def hear_again(self, machine_id: str) -> None:
        """Take a machine's next report in even if it repeats the last. May be called from any thread."""
        session = self._sessions.get(machine_id)
        if session is not None:
            session.hear_again()

    # ---- for the sessions

    def is_current(self, session: Session) -> bool:
        return self._sessions.get(session.opened.machine_id) is session

    def stream_refused(self, machine_id: str, said: wire.StreamRefused) -> None:
        if self.on_stream_refused is not None:
            self.on_stream_refused(machine_id, said.stream, said.message[: codec.MESSAGE])

    async def act(self, who: Opened, job: Callable[[Tx], T]) -> T:
        """Do a machine's act in a transaction; many machines' acts may share it."""
        return await asyncio.wrap_future(self._batches.submit(fleet.lock_order(who.org_id, who.cluster_id), job))

    async def ask(self, question: Callable[[Tx], T]) -> T:
        """Read from the database, beside the threads that people's requests use."""

        def read() -> T:
            with self._db.read() as tx:
                return question(tx)

        return await self._loop.run_in_executor(self._readers, read)

    # ---- the door

    async def serve(self, ws: WebSocket) -> None:
        """Serve `WS /api/v1/agent/session` from its handshake to its end."""
        session = None
        removals = self._removals
        try:
            session = await self._admitted(ws)
            if session is not None:
                await self._welcome(session)
                if removals == self._removals or await self._is_still_known(ws, session):
                    await session.run()
        except (RuntimeError, WebSocketDisconnect, OSError):
            pass  # it left
        except asyncio.CancelledError:
            if session is None or not session.dropped:
                raise
        finally:
            if session is not None:
                self.clearing.ended(session)
                if self.is_current(session):
                    del self._sessions[session.opened.machine_id]

    async def _admitted(self, ws: WebSocket) -> Session | None:
        """Return the session that its hello opened, or None when it was refused."""
        key = bearer(ws) or ""
        try:
            self._let_try(key)
            who = await self._known(key, _address(ws))
            self._let_open()
        except Refusal as refusal:
            await deny(ws, refusal)
            return None
        await ws.accept()
        return await self._opened(ws, key, who)

    def _let_try(self, key: str) -> None:
        """Count a try of this key: a stolen one in a loop must not hold up everybody. Errors: `RATE_LIMITED`."""
        tried = hashed(key).hex()
        wait = self._by_key.wait_s(tried)
        if wait:
            raise _too_many(wait)
        self._by_key.spend(tried)

    def _let_open(self) -> None:
        """Errors: `UNAVAILABLE` with `retry_after_s`, while no session can be opened."""
        if time.monotonic() - self._unable_at < SHUT_FOR_S:
            raise _come_again("The control plane's database takes no session now.")

    async def _known(self, key: str, address: str) -> Opened:
        """Return whose key this is; a known one passes whatever else came from its address.

        Errors: of `_authenticated`; `RATE_LIMITED` for an unknown key of an address that brought many.
        """
        wait = self._by_address.wait_s(address)
        try:
            return await (self._authenticated_in_doubt(key) if wait else self._authenticated(key))
        except Refusal as refusal:
            if refusal.code != "UNAUTHENTICATED":
                raise
            if wait:
                raise _too_many(wait) from None
            self._by_address.spend(address)
            raise

    async def _authenticated_in_doubt(self, key: str) -> Opened:
        """Look the key up in a line of its own, so that who floods it does not stand before other addresses."""
        if self._doubted >= MAX_DOUBTED:
            raise _come_again("Many unknown keys come from this address.")
        self._doubted += 1
        try:
            async with self._one_doubted:
                return await self._authenticated(key)
        finally:
            self._doubted -= 1

    async def _is_still_known(self, ws: WebSocket, session: Session) -> bool:
        """Look again at one who came while machines were removed: it was not among the sessions that are told."""
        key = bearer(ws) or ""
        try:
            await self.ask(lambda tx: sessions.authenticate(tx, key))
        except Refusal as refusal:
            await session.refuse(refusal)
        except Exception:
            log.exception("machine_not_authenticated", machine=session.opened.machine_id)
            await session.end(CLOSE_FAULT, "the control plane could not look again; come again")
        else:
            return True
        return False

    async def _authenticated(self, key: str) -> Opened:
        """Return whose key this is. Errors: of `sessions.authenticate`; `UNAVAILABLE` with `retry_after_s`."""
        if self._newcomers >= MAX_WAITING or len(self._batches) >= MAX_WAITING:
            raise _come_again("Many machines come back at once.")
        self._newcomers += 1
        try:
            return await self.ask(lambda tx: sessions.authenticate(tx, key))
        except Refusal:
            raise
        except Exception:
            log.exception("machine_not_authenticated")
            raise _come_again("The control plane's database does not answer.") from None
        finally:
            self._newcomers -= 1

    async def _opened(self, ws: WebSocket, key: str, who: Opened) -> Session | None:
        try:
            hello = await _hello(ws)
            opened = await self._open(who, lambda tx: sessions.open(tx, key, hello, _address(ws)))
        except codec.BadFrame as error:
            await close(ws, wire.CLOSE_BAD_FRAME, str(error))
        except TimeoutError:
            await close(ws, wire.CLOSE_BAD_FRAME, f"no hello within {HELLO_WITHIN_S:.0f} s")
        except Refusal as refusal:
            if refusal.code == "MACHINE_REMOVED":
                await ws.send_text(codec.encode("removed", wire.Removed(refusal.message)))
            await close(ws, CLOSES.get(refusal.code, CLOSE_FAULT), refusal.message)
        except WebSocketDisconnect:
            raise
        except Exception:
            log.exception("hello_failed", machine=who.machine_id)
            await close(ws, CLOSE_FAULT, "the control plane could not open the session; come again")
        else:
            return Session(self, ws, opened)
        return None

    async def _open(self, who: Opened, job: Callable[[Tx], Opened]) -> Opened:
        """Open a session, and remember whether the database was able to. Errors: of `job`, and the database's."""
        try:
            opened = await self.act(who, job)
        except Exception as error:
            if is_unable(error) or (isinstance(error, Refusal) and error.code == "UNAVAILABLE"):
                self._unable_at = time.monotonic()
            raise
        self._unable_at = -math.inf
        return opened

    async def _welcome(self, session: Session) -> None:
        """Make a session the machine's one: the newest epoch is; an older one is closed."""
        opened = session.opened
        before = self._sessions.get(opened.machine_id)
        if before is not None and before.opened.epoch > opened.epoch:
            raise WebSocketDisconnect  # a newer hello overtook this one's answer
        self._sessions[opened.machine_id] = session
        if before is not None:
            self._job(before.end(wire.CLOSE_SUPERSEDED, sessions.SUPERSEDED))
        await session.send(
            "welcome",
            wire.Welcome(
                opened.machine_id,
                opened.name,
                opened.epoch,
                opened.incarnation,
                self._config.report_every_s,
                _chance.uniform(0, min(self._config.spread_s, len(self._sessions) / FIRST_REPORTS_A_SECOND)),
            ),
        )

    # ---- what commits change

    def _on_commit(self, signals: Sequence[Signal], _seq: int | None) -> None:
        mine = [signal for signal in signals if signal.wake in (Wake.DESIRED, Wake.MACHINE_REMOVED)]
        if mine:
            with contextlib.suppress(RuntimeError):  # the loop is closed: everything ends
                self._loop.call_soon_threadsafe(self._follow, mine)

    def _follow(self, signals: Sequence[Signal]) -> None:
        for signal in signals:
            session = self._sessions.get(signal.id)
            if signal.wake is Wake.MACHINE_REMOVED:
                self._removals += 1
                self.heard.drop(signal.id)
                if session is not None:
                    self._job(self._removed(session))
            elif session is not None:
                session.hear_again()
                session.push()

    async def _removed(self, session: Session) -> None:
        """Tell a removed machine, and end its session whether it listens or not."""
        self._sessions.pop(session.opened.machine_id, None)
        await session.refuse(sessions.removed())
        session.drop()

    async def _beat(self) -> None:
        while True:
            self.heard.beat()
            dead = time.monotonic() - SILENT_CLOSES_S
            for session in [session for session in self._sessions.values() if session.last_frame < dead]:
                self._job(self._silent(session))
            await asyncio.sleep(BEAT_EVERY_S)

    async def _silent(self, session: Session) -> None:
        await session.end(wire.CLOSE_BAD_FRAME, f"no frame for {SILENT_CLOSES_S:.0f} s")
        session.drop()

    def _job(self, coroutine: Coroutine[Any, Any, None]) -> None:
        job = asyncio.ensure_future(coroutine)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)


def _come_again(why: str) -> Refusal:
    """At a moment of its own for each, so that they do not all come again together."""
    again = _chance.randint(*COME_AGAIN_S)
    return Refusal("UNAVAILABLE", f"{why} Come again in {again} s.", retry_after_s=again)


def _too_many(wait_s: int) -> Refusal:
    return Refusal("RATE_LIMITED", f"Too many sessions were asked for. Come again in {wait_s} s.", retry_after_s=wait_s)


def _address(ws: WebSocket) -> str:
    return ws.client.host[:64] if ws.client else ""


async def _hello(ws: WebSocket) -> Hello:
    async with asyncio.timeout(HELLO_WITHIN_S):
        message = await ws.receive()
    if message["type"] != "websocket.receive":
        raise WebSocketDisconnect(message.get("code", 1006))
    said = codec.decode(message.get("text") or message.get("bytes") or "")
    if not isinstance(said, wire.Hello):
        raise codec.BadFrame("a session begins with hello")
    return codec.hello(said)
