"""The session as real WebSockets carry it: what is said, what is tried again and how, what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import pytest

from corral.agent.backoff import Jitter
from corral.agent.link import Link, Pace, removed_by, retry_after
from corral.agent.site import Site
from corral.protocol.gpu_faults import ClearFault
from corral.protocol.messages import (
    CLOSE_REMOVED,
    CLOSE_SUPERSEDED,
    CLOSE_UNAUTHORIZED,
    Ack,
    Described,
    Desired,
    Hello,
    Inventory,
    OpenStream,
    Removed,
    Report,
    Welcome,
)
from corral.protocol.updates import Update
from tests.agent.fake_site import FakeSite, fake_site, run, until
from tests.agent.scripted import want

KEY = "ab" * 32
QUICK = Pace(base_s=0.02, cap_s=0.05, refused_s=0.1, superseded_s=0.1, spread_s=0.05, silence_s=0.6)


@dataclass
class Machine:
    """A `Peer` that remembers what it was told."""

    welcomes: list[Welcome] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    told: list[Desired] = field(default_factory=list)
    asked: list[OpenStream] = field(default_factory=list)

    def hello(self) -> Hello:
        return Hello(1, "0.1.0", "instance", "boot", 7, incarnation="inc0")

    def report(self, seq: int, whole: bool) -> Report:
        return Report(seq, "0.1.0", "boot", 7, "digest", Inventory("box") if whole else None)

    def welcomed(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)

    def acked(self, ack: Ack, latency_s: float) -> Described | None:
        self.acks.append(ack)
        return Described(tuple(want(name) for name in ack.describe)) if ack.describe else None

    def desired(self, desired: Desired) -> None:
        self.told.append(desired)

    def open_stream(self, ask: OpenStream) -> None:
        self.asked.append(ask)

    def update(self, ask: Update) -> None:
        return

    def clear_fault(self, ask: ClearFault) -> None:
        return


@asynccontextmanager
async def linked(site: FakeSite, pace: Pace = QUICK) -> AsyncIterator[tuple[Link, Machine, asyncio.Task[str]]]:
    machine = Machine()
    link = Link(Site.at(site.url), KEY, machine, pace)
    task = asyncio.ensure_future(link.run())
    try:
        yield link, machine, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_session_starts_with_hello_and_reports_with_the_inventory_once() -> None:
    async def test() -> None:
        async with fake_site() as site, linked(site) as (link, machine, _):
            session = await site.session()
            await until(lambda: len(session.reports) >= 3)
            assert site.attempts[0][1:] == ("/api/v1/agent/session", f"Bearer {KEY}")
            assert session.hello == machine.hello()
            assert [r.seq for r in session.reports[:3]] == [1, 2, 3]
            assert [r.inventory is not None for r in session.reports[:3]] == [True, False, False]
            assert machine.welcomes == [site.welcome]
            assert link.connected
            assert len(machine.acks) >= 2

    run(test)


def test_the_inventory_is_sent_again_when_the_site_asks_for_it() -> None:
    async def test() -> None:
        site = FakeSite(answer=lambda report: Ack(report.seq, need_inventory=report.seq == 2))
        async with fake_site(site), linked(site):
            session = await site.session()
            await until(lambda: len(session.reports) >= 3)
            assert [r.inventory is not None for r in session.reports[:3]] == [True, False, True]

    run(test)


def test_a_change_is_reported_at_once_and_changes_in_a_row_are_one_report() -> None:
    async def test() -> None:
        site = FakeSite(welcome=Welcome("m1", "box", 1, "inc1", report_every_s=3600))
        async with fake_site(site), linked(site) as (link, _, _):
            session = await site.session()
            await until(lambda: session.reports)
            for _ in range(50):
                link.report_soon()
                await asyncio.sleep(0)
            await until(lambda: len(session.reports) >= 2)
            link.report_soon()
            await until(lambda: len(session.reports) >= 3)
            assert len(session.reports) == 3

    run(test)


def test_what_the_site_wants_and_asks_reaches_the_machine() -> None:
    async def test() -> None:
        async with fake_site() as site, linked(site) as (_, machine, _):
            session = await site.session()
            ask = OpenStream("s1", "/api/v1/agent/streams/s1", "a1", 1, "ssh")  # type: ignore[arg-type]
            await session.send("desired", Desired((want(),)))
            await session.send("open_stream", ask)
            await session.send("of_a_later_release", {"what": 1})
            await session.socket.send("not JSON")
            await until(lambda: machine.asked)
            assert machine.told == [Desired((want(),))]
            assert machine.asked[0].stream == "s1"
            await until(lambda: len(machine.acks) > 2)  # neither of the odd frames ended the session
            assert len(site.sessions) == 1

    run(test)


def test_a_site_that_does_not_know_an_allocation_gets_it_described() -> None:
    async def test() -> None:
        site = FakeSite(answer=lambda report: Ack(report.seq, describe=("a9",) if report.seq == 1 else ()))
        async with fake_site(site), linked(site):
            session = await site.session()
            assert (await until(lambda: session.of(Described)))[0].allocations[0].id == "a9"

    run(test)


def test_a_stream_that_cannot_be_dialled_is_refused_by_name() -> None:
    from corral.protocol.messages import StreamRefused

    async def test() -> None:
        async with fake_site() as site, linked(site) as (link, _, _):
            session = await site.session()
            await until(lambda: link.connected)
            link.refuse_stream("s1", "it does not run")
            assert await until(lambda: session.of(StreamRefused)) == [StreamRefused("s1", "it does not run")]

    run(test)


def test_a_lost_session_comes_back_and_tells_everything_again() -> None:
    async def test() -> None:
        async with fake_site() as site, linked(site):
            first = await site.session()
            await until(lambda: first.reports)
            first.socket.transport.abort()
            second = await site.session(1)
            await until(lambda: second.reports)
            report = second.reports[0]
            assert report.seq == 1
            assert report.inventory is not None

    run(test)


def test_a_site_that_answers_no_report_any_more_is_left_and_dialled_again() -> None:
    async def test() -> None:
        site = FakeSite(ack=False)
        async with fake_site(site), linked(site):
            await site.session(1)

    run(test)


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GONE])
def test_any_refusal_but_the_distinct_one_is_tried_again(status: HTTPStatus) -> None:
    async def test() -> None:
        site = FakeSite()
        site.refuse(status, {"code": "SOMETHING", "message": "no"})
        async with fake_site(site), linked(site) as (_, _, task):
            await site.session()
            assert not task.done()

    run(test)


def test_the_distinct_410_before_the_session_ends_the_link_with_the_reason() -> None:
    async def test() -> None:
        site = FakeSite()
        site.refuse(HTTPStatus.GONE, {"code": "MACHINE_REMOVED", "message": "removed by an admin"})
        async with fake_site(site), linked(site) as (_, _, task):
            assert await task == "removed by an admin"
            assert not site.sessions

    run(test)


def test_the_removed_message_ends_the_link() -> None:
    async def test() -> None:
        async with fake_site() as site, linked(site) as (_, _, task):
            await (await site.session()).send("removed", Removed("gone for good"))
            assert await task == "gone for good"

    run(test)


@pytest.mark.parametrize(("code", "ends"), [(CLOSE_REMOVED, True), (CLOSE_UNAUTHORIZED, False), (1011, False)])
def test_only_the_close_code_of_removal_ends_the_link(code: int, ends: bool) -> None:
    async def test() -> None:
        async with fake_site() as site, linked(site) as (_, _, task):
            await (await site.session()).socket.close(code, "why")
            if ends:
                assert await task == "why"
            else:
                await site.session(1)
                assert not task.done()

    run(test)


def test_retry_after_is_obeyed() -> None:
    async def test() -> None:
        site = FakeSite()
        site.refuse(HTTPStatus.TOO_MANY_REQUESTS, {"code": "RATE_LIMITED", "message": "later"}, Retry_After="1")
        async with fake_site(site), linked(site):
            await site.session()
            assert site.attempts[1][0] - site.attempts[0][0] >= 1.0

    run(test)


def test_an_unknown_key_and_a_superseded_session_come_back_slowly() -> None:
    async def test() -> None:
        site = FakeSite()
        site.refuse(HTTPStatus.UNAUTHORIZED, {"code": "UNAUTHENTICATED", "message": "no"})
        async with fake_site(site), linked(site, replace(QUICK, refused_s=0.3, superseded_s=0.3)):
            first = await site.session()
            assert site.attempts[1][0] - site.attempts[0][0] >= 0.3
            await first.socket.close(CLOSE_SUPERSEDED, "another")
            await site.session(1)
            assert site.attempts[2][0] - site.attempts[1][0] >= 0.3

    run(test)


def test_jitter_is_full_and_capped() -> None:
    high, low = Jitter(1, 30, lambda: 1.0), Jitter(1, 30, lambda: 0.0)
    assert [high.next() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [low.next() for _ in range(3)] == [0, 0, 0]
    assert high.next(at_least_s=60) == 90
    high.reset()
    assert high.next() == 1


def test_only_machine_removed_counts_as_removal() -> None:
    assert removed_by(410, b'{"code":"MACHINE_REMOVED","message":"m"}') == "m"
    for status, body in [
        (410, b'{"code":"TOKEN_EXPIRED","message":"m"}'),
        (410, b""),
        (410, b"[]"),
        (410, b"[" * 100_000),
        (401, b'{"code":"MACHINE_REMOVED","message":"m"}'),
    ]:
        assert removed_by(status, body) is None


def test_a_retry_after_that_is_no_number_counts_as_none() -> None:
    assert retry_after({"Retry-After": "7"}) == 7
    assert retry_after({"Retry-After": "99999999999"}) == 3600
    for text in ("", "-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "1.5"):
        assert retry_after({"Retry-After": text}) == 0
