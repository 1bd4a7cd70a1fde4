"""Streams: asked for on the session, dialled back, bytes both ways with backpressure, ended at once."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from corral.agent.calls import ThreadCalls
from corral.agent.converge import Converger
from corral.agent.site import Site
from corral.agent.state import StateFolder
from corral.agent.tunnel import Streams
from corral.agent.work import BootClock, WorkFolder
from corral.protocol.messages import AllocationState, Desired, OpenStream, StreamTarget
from tests.agent.fake_site import FakeSite, fake_site, run, until
from tests.agent.scripted import ScriptedDriver, want

KEY = "cd" * 32


@dataclass
class Bench:
    site: FakeSite
    streams: Streams
    work: Converger
    driver: ScriptedDriver
    refused: list[tuple[str, str]] = field(default_factory=list)
    inside: list[socket.socket] = field(default_factory=list)
    """The container's ends of the streams."""

    def ask(self, stream: str = "s1", target: StreamTarget = StreamTarget.SSH, **changes: object) -> None:
        given = {"allocation": "a1", "generation": 1, "port": 0, **changes}
        ask = OpenStream(stream, f"/api/v1/agent/streams/{stream}", target=target, **given)  # type: ignore[arg-type]
        self.streams.open(ask, lambda name, why: self.refused.append((name, why)))

    def open_inside(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.inside.append(theirs)
        return ours


@asynccontextmanager
async def bench(path: Path) -> AsyncIterator[Bench]:
    state = StateFolder(path / "state")
    state.make()
    calls = ThreadCalls(4, "test-stream")
    work = Converger("m1", ScriptedDriver(path / "containers"), WorkFolder(state), calls, BootClock())
    async with fake_site() as site:
        streams = Streams(Site.at(site.url), KEY, work, calls)
        work.hooks.ending = streams.close_allocation
        b = Bench(site, streams, work, work.driver)  # type: ignore[arg-type]
        b.driver.inside = b.open_inside
        try:
            await work.adopt()
            work.accept(Desired((want(),)))
            await until(lambda: work.running("a1", 1))
            yield b
        finally:
            await streams.close()
            await work.close()
            for end in b.inside:
                end.close()
            calls.close()


async def read(sock: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < size:
        chunk = await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 15)
        if not chunk:
            break
        got += chunk
    return bytes(got)


def test_bytes_go_both_ways_and_the_machine_shows_its_key(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask()
            outside = await b.site.stream("s1")
            assert b.site.attempts[-1][1:] == ("/api/v1/agent/streams/s1", f"Bearer {KEY}")
            await outside.send(b"to the inside")
            assert await read(b.inside[0], 13) == b"to the inside"
            b.inside[0].send(b"and back")
            assert await asyncio.wait_for(outside.recv(), 15) == b"and back"

    run(test)


def test_a_site_that_is_gone_is_found_out_by_tcp(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            outside = await b.streams._dial(OpenStream("s1", "/api/v1/agent/streams/s1", "a1", 1, StreamTarget.SSH))
            sock: socket.socket = outside.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
            await outside.close()

    run(test)


def test_much_data_arrives_whole_in_both_directions_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask()
            outside = await b.site.stream("s1")
            down, up = os.urandom(8 << 20), os.urandom(8 << 20)

            async def send_down() -> None:
                for at in range(0, len(down), 100_000):
                    await outside.send(down[at : at + 100_000])

            async def receive_up() -> bytes:
                got = bytearray()
                while len(got) < len(up):
                    frame = await outside.recv()
                    assert isinstance(frame, bytes)
                    got += frame
                return bytes(got)

            loop = asyncio.get_running_loop()
            _, received_down, received_up, _ = await asyncio.wait_for(
                asyncio.gather(
                    send_down(), read(b.inside[0], len(down)), receive_up(), loop.sock_sendall(b.inside[0], up)
                ),
                30,
            )
            assert received_down == down
            assert received_up == up

    run(test)


def test_a_half_close_is_passed_on_and_the_answer_still_comes(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask(target=StreamTarget.PORT, port=80)
            outside = await b.site.stream("s1")
            await outside.send(b"question")
            await outside.send("eof")
            assert await read(b.inside[0], 100) == b"question"
            b.inside[0].send(b"answer")
            b.inside[0].shutdown(socket.SHUT_WR)
            assert await outside.recv() == b"answer"
            assert await outside.recv() == "eof"

    run(test)


def test_an_inside_that_only_stopped_speaking_still_hears(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask(target=StreamTarget.PORT, port=80)
            outside = await b.site.stream("s1")
            b.inside[0].shutdown(socket.SHUT_WR)
            assert await outside.recv() == "eof"
            await outside.send(b"more")
            assert await read(b.inside[0], 4) == b"more"

    run(test)


def test_the_end_of_one_side_ends_the_other_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask("s1")
            outside = await b.site.stream("s1")
            await outside.close()
            assert await read(b.inside[0], 1) == b""
            b.ask("s2")
            outside = await b.site.stream("s2")
            b.inside[1].close()
            assert await outside.recv() == "eof"
            with pytest.raises(ConnectionClosed):
                await outside.recv()
            await until(lambda: not b.streams._open)

    run(test)


def test_a_stopped_allocation_closes_its_streams_and_takes_no_new_ones(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask()
            outside = await b.site.stream("s1")
            b.work.accept(Desired((want(generation=2, stop=True),)))
            assert await read(b.inside[0], 1) == b""
            with pytest.raises(ConnectionClosed):
                while True:
                    await outside.recv()
            b.ask("s2", generation=2)
            await until(lambda: b.refused)
            assert "does not run" in b.refused[0][1]
            await until(lambda: b.work.reports()[0].state is AllocationState.GONE)

    run(test)


def test_a_stream_is_only_dialled_into_adopted_running_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.driver.put("a9")
            await b.work.look()
            b.ask("unknown", allocation="a8")
            b.ask("unadopted", allocation="a9", generation=0)
            b.ask("newer", generation=7)
            await until(lambda: len(b.refused) == 3)
            assert b.driver.count("open_ssh a9") == 0
            assert not b.site.attempts

    run(test)


def test_what_the_driver_says_no_to_is_refused_with_its_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.driver.inside = None
            b.ask("s1", StreamTarget.PORT, port=81)
            b.ask("s2", StreamTarget.PORT, port=0)
            await until(lambda: len(b.refused) == 2)
            assert dict(b.refused)["s1"] == "nothing listens on that port"
            assert "not a port" in dict(b.refused)["s2"]

    run(test)


def test_a_stream_the_site_does_not_take_leaves_nothing_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.site.refuse(HTTPStatus.NOT_FOUND)
            b.ask()
            await until(lambda: b.refused)
            assert await read(b.inside[0], 1) == b""

    run(test)


def test_a_slow_reader_holds_up_the_writer(tmp_path: Path) -> None:
    async def test() -> None:
        async with bench(tmp_path) as b:
            b.ask()
            outside = await b.site.stream("s1")
            loop, sent = asyncio.get_running_loop(), 0

            async def flood() -> None:
                nonlocal sent
                while True:
                    await loop.sock_sendall(b.inside[0], bytes(1 << 16))
                    sent += 1 << 16

            task = asyncio.ensure_future(flood())
            before = -1
            while sent != before:  # nobody reads outside: after a while nothing moves any more
                before = sent
                await asyncio.sleep(0.3)
            task.cancel()
            outside.transport.abort()
            assert sent < 32 << 20

    run(test)
