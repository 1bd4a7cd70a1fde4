"""Streams through a running control plane: many at once, paused for long, judged again, ended in time."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select as select_rows
from sqlalchemy import update
from starlette.websockets import WebSocket, WebSocketState
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from corral.client import config
from corral.client.streams import Frames, Stream, StreamError, open_stream
from corral.domain.machines import MachineRef
from corral.domain.secrets import hashed
from corral.protocol import messages as wire
from corral.server import serving, tunnel
from corral.server.door import Door
from corral.store.engine import Database
from corral.store.tables.journal import journal
from corral.store.tables.machines import machines
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Wake
from corral.usecases import connections
from corral.usecases.context import Context
from tests import scripted_agent as scripted
from tests.live_server import DEADLINE_S, Site, agent_key, eventually, live_server
from tests.scripted_agent import Enrolled, Speaker
from tests.world import World

DEV = "/api/v1/orgs/acme/workspaces/research/compute-clusters/dev"
PING, CLOSE = 9, 8
JOIN = {"protocol": 1, "token": "corj_x", "key": "ab" * 32, "hostname": "h", "release": "1"}


@dataclass
class Ground:
    """A running site with the Active compute cluster `dev` on the machine `m1`, which says what a test has it say."""

    world: World
    site: Site
    machine: Enrolled

    def token(self, who: str = "member") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.world.tokens[who]}"}

    def open(self, who: str = "member") -> Stream:
        return open_stream(config.Site(self.site.url, token=self.world.tokens[who]), f"{DEV}/stream", target="logs")

    @contextmanager
    def opened(self, agent: Speaker) -> Iterator[tuple[Stream, Connection]]:
        """Open a stream; yield the person's end and the agent's."""
        ends: list[Stream] = []
        person = threading.Thread(target=lambda: ends.append(self.open()))
        person.start()
        ask = agent.next(wire.OpenStream)
        with self.dial_back(ask) as leg:
            person.join()
            try:
                yield ends[0], leg
            finally:
                ends[0].close()

    def dial_back(self, ask: wire.OpenStream) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self.machine.key}"}
        return connect(f"{self.site.ws_url}{ask.url}", additional_headers=headers, compression=None, proxy=None)

    def terminate(self, *, wake: bool = True) -> None:
        """Have `dev` terminated, and, with `wake`, the streams told."""
        dev = self.world.ids.workloads["dev"]
        with self.world.db.write() as tx:
            tx.run(update(workloads).where(workloads.c.id == dev).values(stop_asked_at=tx.now))
            if wake:
                tx.wake(Wake.STREAMS, dev)


@pytest.fixture
def rechecking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are judged often, woken or not. Name it before `ground`."""
    monkeypatch.setattr(tunnel, "RECHECK_EVERY_S", 0.05)


@pytest.fixture
def ground(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setattr(serving, "PING_EVERY_S", 0.05)
    world = World(db, tmp_path)
    id, key = world.add_machine("m1"), agent_key()
    world.add_workload("dev", "m1")
    with db.write() as tx:
        tx.run(update(machines).values(key_hash=hashed(key)))
        tx.run(update(allocations).values(host_key="ssh-ed25519 AAAA"))
    machine = Enrolled(MachineRef(id, world.ids.orgs["acme"], world.ids.clusters["default"], "m1"), key)
    with live_server(db) as site:
        yield Ground(world, site, machine)


def test_many_reads_of_a_log_at_once_are_all_answered_and_nobody_else_waits_for_them(ground: Ground) -> None:
    async def ask() -> tuple[list[int], int]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=ground.site.url, limits=limits, timeout=30) as http:
            reads = [http.get(f"{DEV}/logs?kind=container", headers=ground.token()) for _ in range(100)]
            answers = await asyncio.gather(*reads)
            return [answer.status_code for answer in answers], (await http.get("/healthz")).status_code

    assert asyncio.run(ask()) == ([409] * 100, 200)  # the machine is not connected


def ended(stream: Stream) -> str:
    """Read a stream to its end; return why it was closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream.pump(theirs.fileno(), theirs.fileno())
    return stream.close_reason


def test_a_stream_whose_reader_pauses_stays_open_and_loses_nothing(ground: Ground) -> None:
    with scripted.session(ground.site, ground.machine) as agent, ground.opened(agent) as (person, leg):
        frames, seen = Frames(), list[tuple[int, bytes]]()
        while sum(opcode == PING for opcode, _ in seen) < 4:  # not one of them is answered
            assert select.select([person._sock], [], [], DEADLINE_S)[0]
            seen += frames.feed(person._sock.recv(65536))
            assert CLOSE not in [opcode for opcode, _ in seen]
        leg.send(b"still here")
        while (2, b"still here") not in seen:
            assert select.select([person._sock], [], [], DEADLINE_S)[0]
            seen += frames.feed(person._sock.recv(65536))


def test_what_is_revoked_while_a_stream_is_let_in_ends_it_at_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = Door.write

    @contextmanager
    def then_terminated(door: Door) -> Iterator[Context]:
        with enter(door) as ctx:
            yield ctx
        ground.terminate()

    monkeypatch.setattr(Door, "write", then_terminated)
    with scripted.session(ground.site, ground.machine), pytest.raises(StreamError) as caught:
        ground.open()
    assert caught.value.code == "NOT_ACTIVE"


def test_a_stream_that_one_has_no_place_for_is_not_said_to_be_open(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ground.site.app.state.streams._places, "_most", 1)

    def opened() -> int:
        with ground.world.db.read() as tx:
            return len(tx.all(select_rows(journal.c.seq).where(journal.c.type == "workload.stream")))

    with scripted.session(ground.site, ground.machine) as agent:
        with ground.opened(agent):
            for _ in range(3):
                with pytest.raises(StreamError) as caught:
                    ground.open()
                assert caught.value.code == "RATE_LIMITED"
            assert opened() == 1
        eventually(lambda: not ground.site.app.state.streams._places._taken)
        with ground.opened(agent):
            assert opened() == 2


def test_who_may_not_stay_is_put_out_however_many_ask_anew(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    enter, go_on, waiting = Door.write, threading.Event(), threading.Semaphore(0)

    @contextmanager
    def slowly(door: Door) -> Iterator[Context]:
        waiting.release()
        assert go_on.wait(DEADLINE_S)
        with enter(door) as ctx:
            yield ctx

    # Each another: no line of one asker bounds them.
    tokens = [ground.world.token("member", ["all"], name=f"token-{number}") for number in range(12)]

    def ask(number: int) -> int:
        headers = {"Authorization": f"Bearer {tokens[number]}"}
        return httpx.get(f"{ground.site.url}{DEV}/logs?kind=container", headers=headers, timeout=60).status_code

    with (
        scripted.session(ground.site, ground.machine) as agent,
        ground.opened(agent) as (person, _),
        ThreadPoolExecutor(12) as people,
    ):
        monkeypatch.setattr(Door, "write", slowly)
        answers = people.map(ask, range(12))
        try:
            for _ in range(tunnel.THREADS):
                assert waiting.acquire(timeout=DEADLINE_S)
            ground.terminate()
            assert ended(person) == "dev is being terminated."
        finally:
            go_on.set()
        assert list(answers) == [409] * 12  # it is being terminated


def test_a_stream_that_could_not_be_judged_is_judged_again(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "CHECK_AGAIN_S", 0.01)
    judged = failing(monkeypatch, 2)
    with scripted.session(ground.site, ground.machine) as agent, ground.opened(agent) as (person, _):
        ground.terminate()
        assert ended(person) == "dev is being terminated."
    assert judged() >= 3


def test_streams_are_judged_now_and_then_also_after_a_time_when_none_could_be(
    rechecking: None, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "CHECK_AGAIN_S", 0.01)
    judged = failing(monkeypatch, 1)
    with scripted.session(ground.site, ground.machine) as agent, ground.opened(agent) as (person, _):
        eventually(lambda: judged() > 1)
        ground.terminate(wake=False)
        assert ended(person) == "dev is being terminated."


def test_a_stream_that_cannot_be_judged_ends(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "CHECK_AGAIN_S", 0.01)
    failing(monkeypatch, 1_000)
    with scripted.session(ground.site, ground.machine) as agent, ground.opened(agent) as (person, _):
        assert ended(person).startswith("The control plane cannot tell whether you may still use this.")


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """Let judging a stream fail `times` times, as when the database is away; return how often it was tried."""
    real, asked = connections.still_allowed, []

    def still_allowed(ctx: Context, target: connections.Target) -> None:
        asked.append(1)
        if len(asked) <= times:
            raise ConnectionError("the database is away")
        real(ctx, target)

    monkeypatch.setattr(connections, "still_allowed", still_allowed)
    return lambda: len(asked)


def test_a_person_who_left_before_the_machine_dialled_back_is_no_fault(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    streams: tunnel.Streams = ground.site.app.state.streams
    headers = "".join(f"{name}: {value}\r\n" for name, value in ground.token().items())
    request = (
        f"GET {DEV}/stream?target=logs HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n"
    )
    with scripted.session(ground.site, ground.machine) as agent:
        with socket.create_connection(("127.0.0.1", ground.site.config.port)) as person:
            person.sendall(request.encode())
            ask = agent.next(wire.OpenStream)
        with ground.dial_back(ask):
            eventually(lambda: len(streams) == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_side_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "CLOSE_WITHIN_S", 0.01)

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    ws = WebSocket({"type": "websocket"}, never, never)
    ws.application_state = ws.client_state = WebSocketState.CONNECTED
    asyncio.run(asyncio.wait_for(tunnel._close(ws, 1000, "over"), DEADLINE_S))


def test_people_who_take_up_every_thread_stop_no_machine_no_stream_and_no_listener(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go_on, waiting = Door.read, threading.Event(), threading.Semaphore(0)

    @contextmanager
    def slowly(door: Door) -> Iterator[Context]:
        if door._route.endswith("/me/tokens"):
            waiting.release()
            assert go_on.wait(DEADLINE_S)
        with read(door) as ctx:
            yield ctx

    def ask(_: int) -> int:
        return httpx.get(f"{ground.site.url}/api/v1/me/tokens", headers=ground.token(), timeout=60).status_code

    monkeypatch.setattr(Door, "read", slowly)
    with ThreadPoolExecutor(45) as people:
        answers = people.map(ask, range(45))
        try:
            for _ in range(40):
                assert waiting.acquire(timeout=DEADLINE_S)
            with scripted.session(ground.site, ground.machine) as agent, ground.opened(agent):
                assert agent.report().seq == 1
            join = httpx.post(f"{ground.site.url}/api/v1/agent/join", json=JOIN, timeout=DEADLINE_S)
            assert join.status_code == 404
            events = f"{ground.site.url}/api/v1/orgs/acme/events/stream"
            with httpx.stream("GET", events, headers=ground.token(), timeout=DEADLINE_S) as listening:
                assert next(listening.iter_lines()) == "retry: 2000"
        finally:
            go_on.set()
        assert list(answers) == [200] * 45
