"""Agents' sessions against a running control plane: who is let in, what ends a session, what is pushed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, event, select, update
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.connection import Connection as Socket

from corral.domain.errors import Refusal
from corral.protocol import codec
from corral.protocol import messages as wire
from corral.server import agents
from corral.server.agent_session import CLOSE_FAULT, Session
from corral.server.agents import Hub
from corral.store import machines as machine_rows
from corral.store.database_errors import IntegrityError
from corral.store.engine import Database
from corral.store.tables.machines import liveness, machines
from corral.store.transaction import Row, Scope, Wake
from corral.usecases import reports, sessions
from tests import scripted_agent as scripted
from tests.live_server import Site, agent_key, eventually, live_server
from tests.scripted_agent import INVENTORY, Enrolled


@pytest.fixture
def site(db: Database) -> Iterator[Site]:
    with live_server(db) as site:
        yield site


@pytest.fixture
def machine(db: Database) -> Enrolled:
    return scripted.enrol(db, scripted.tenancy(db), "m1")[0]


def row_of(db: Database, machine: Enrolled) -> Row:
    with db.read() as tx:
        row = machine_rows.get(tx, Scope(machine.ref.org_id), machine.ref.id)
    assert row is not None
    return row


def remove(db: Database, machine: Enrolled) -> None:
    with db.write() as tx:
        machine_rows.save(tx, machine.ref, {"removed_at": tx.now})
        tx.wake(Wake.MACHINE_REMOVED, machine.ref.id)


def refused(site: Site, key: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        scripted.dial(site, key)
    answer = caught.value.response
    return answer.status_code, json.loads(answer.body)["code"]


# ---- the door


@pytest.mark.parametrize("key", ["", "nonsense", agent_key(), "\u00e9" * 64, "A" * 64])
def test_a_key_that_no_machine_has_gets_401_before_the_upgrade(site: Site, key: str) -> None:
    assert refused(site, key) == (401, "UNAUTHENTICATED")


def test_a_removed_machine_gets_410_before_the_upgrade(site: Site, machine: Enrolled) -> None:
    remove(site.db, machine)
    assert refused(site, machine.key) == (410, "MACHINE_REMOVED")


@contextmanager
def read_only(db: Database) -> Iterator[None]:
    """Have the database refuse each write, as a full disk or a standby does."""
    setting = "PRAGMA query_only = {}" if db.is_sqlite else "SET TRANSACTION READ {}"

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(setting.format("ON" if db.is_sqlite else "ONLY"))

    event.listen(db.writer, "begin", begin)
    try:
        yield
    finally:
        event.remove(db.writer, "begin", begin)
        if db.is_sqlite:  # it outlives the transaction, and the next one could not begin
            with contextlib.closing(db.writer.raw_connection()) as connection:
                connection.cursor().execute(setting.format("OFF"))


def closed_after_hello(ws: Socket) -> int:
    """Say hello; return the code that the session is closed with."""
    with pytest.raises(ConnectionClosed) as over:
        scripted.speak(ws)
    assert over.value.rcvd is not None
    return over.value.rcvd.code


def test_a_site_that_can_read_and_not_write_is_shut_before_the_upgrade_until_a_session_opens(
    site: Site, machine: Enrolled
) -> None:
    with scripted.dial(site, machine.key) as first, scripted.dial(site, machine.key) as second:
        with read_only(site.db):
            assert closed_after_hello(first) == CLOSE_FAULT
            with pytest.raises(InvalidStatus) as caught:
                scripted.dial(site, machine.key)
            assert caught.value.response.status_code == 503
            assert 5 <= int(caught.value.response.headers["Retry-After"]) <= 30
            assert refused(site, agent_key()) == (401, "UNAUTHENTICATED")
        assert refused(site, machine.key) == (503, "UNAVAILABLE")
        assert scripted.speak(second).report().seq == 1
        scripted.dial(site, machine.key).close()


def test_a_site_that_was_shut_for_a_while_lets_a_machine_try_again(
    site: Site, machine: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted.dial(site, machine.key) as ws, read_only(site.db):
        assert closed_after_hello(ws) == CLOSE_FAULT
    monkeypatch.setattr(agents, "SHUT_FOR_S", 0.0)
    with scripted.session(site, machine) as speaker:
        assert speaker.report().seq == 1


def test_a_process_without_its_lease_is_shut_too(site: Site, machine: Enrolled) -> None:
    with scripted.dial(site, machine.key) as ws:
        site.db.fenced = "This control plane has lost the site."
        try:
            assert closed_after_hello(ws) == CLOSE_FAULT
            assert refused(site, machine.key) == (503, "UNAVAILABLE")
        finally:
            site.db.fenced = ""


def test_one_machines_hello_that_cannot_be_stored_shuts_nobody_out(
    site: Site, machine: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*_: object) -> None:
        raise IntegrityError("insert", {}, ValueError("odd"))

    with monkeypatch.context() as patched, scripted.dial(site, machine.key) as ws:
        patched.setattr(sessions, "open", odd)
        assert closed_after_hello(ws) == CLOSE_FAULT
    with scripted.session(site, machine) as speaker:
        assert speaker.report().seq == 1


def test_hello_is_answered_by_welcome_and_the_first_report_by_what_should_run(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        assert (speaker.welcome.machine, speaker.welcome.name, speaker.welcome.epoch) == (machine.ref.id, "m1", 1)
        assert speaker.welcome.report_every_s == site.config.report_every_s
        with site.db.write() as tx:
            tx.wake(Wake.DESIRED, machine.ref.id)
        speaker.report()
        assert speaker.inbox == []  # nothing was told before the report
        assert speaker.next(wire.Desired).allocations == ()


def test_each_hello_raises_the_epoch_and_closes_the_older_session(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as first, scripted.session(site, machine) as second:
        assert (first.welcome.epoch, second.welcome.epoch) == (1, 2)
        assert first.closed()[0] == wire.CLOSE_SUPERSEDED
        assert second.report().seq == 1


# ---- reports


def test_the_first_report_makes_a_machine_up(site: Site, machine: Enrolled) -> None:
    assert row_of(site.db, machine)["state"] == "idle"
    with scripted.session(site, machine) as speaker:
        assert speaker.report().need_inventory
        assert row_of(site.db, machine)["state"] == "up"
        assert not speaker.report(inventory=INVENTORY).need_inventory
        assert row_of(site.db, machine)["vcpu"] == 32
        assert not speaker.report().need_inventory


def test_a_report_that_repeats_the_last_touches_no_database(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        speaker.report(inventory=INVENTORY)
        speaker.report()
        submitted = site.app.state.batches.submitted
        for percent in range(5):
            assert speaker.report(cpu_percent=float(percent)).seq == speaker.seq
        assert site.app.state.batches.submitted == submitted
        telemetry = site.hub.telemetry(machine.ref.id)
        assert telemetry is not None
        assert telemetry.cpu_percent == 4.0
        speaker.report(conditions=(scripted.FULL_DISK,))
        assert site.app.state.batches.submitted == submitted + 1
        assert row_of(site.db, machine)["pressure"] == "disk_pressure: the disk is full"


def test_when_a_machine_was_heard_is_written_down(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        speaker.report()

        def written() -> bool:
            with site.db.read() as tx:
                return tx.one(select(liveness).where(liveness.c.machine_id == machine.ref.id)) is not None

        eventually(written)


def test_of_reports_that_queue_only_the_newest_counts(site: Site, machine: Enrolled) -> None:
    conditions = [wire.Condition("disk_pressure", f"level {n}") for n in range(30)]
    with scripted.session(site, machine) as speaker:
        with site.db.write():  # no report can be taken in meanwhile (SQLite), or it is quick (PostgreSQL)
            for condition in conditions:
                speaker.say_report(conditions=(condition,))
        assert speaker.acked().seq == 30
        assert row_of(site.db, machine)["conditions"][0]["message"] == "level 29"
        if site.db.is_sqlite:
            assert site.app.state.batches.submitted < 10


def test_unknown_allocations_close_the_machine_to_new_work_and_are_asked_about_once(
    site: Site, machine: Enrolled
) -> None:
    stray = wire.AllocationReport("01900000-0000-7000-8000-000000000001", 3, wire.AllocationState.RUNNING)
    with scripted.session(site, machine) as speaker:
        assert speaker.report(stray).describe == (stray.id,)
        assert row_of(site.db, machine)["quarantine"] == "unknown_work"
        assert speaker.report(stray).describe == ()
        assert speaker.report().describe == ()
        assert row_of(site.db, machine)["quarantine"] is None
        assert all(not desired.allocations for desired in speaker.inbox if isinstance(desired, wire.Desired))


def test_one_allocation_that_cannot_be_read_ends_no_session_and_is_said(site: Site, machine: Enrolled) -> None:
    good = wire.AllocationReport("01900000-0000-7000-8000-000000000001", 3, wire.AllocationState.RUNNING)
    by_hand = wire.AllocationReport("../../etc\n", 0, wire.AllocationState.RUNNING)
    with scripted.session(site, machine) as speaker:
        assert speaker.report(by_hand, good).describe == (good.id,)
        assert speaker.report(by_hand, good).seq == 2
        (condition,) = row_of(site.db, machine)["conditions"]
        assert condition["kind"] == "allocation_unreadable"
        assert "'../../etc\\u000a'" in condition["message"]
        speaker.report(good)
        assert row_of(site.db, machine)["conditions"] == []


# ---- removal, streams, the end


def test_a_removed_machine_is_told_and_its_session_ends(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        speaker.report()
        remove(site.db, machine)
        assert speaker.next(wire.Removed).message
        assert speaker.closed()[0] == wire.CLOSE_REMOVED
    assert not site.hub.connected(machine.ref.id)
    assert refused(site, machine.key) == (410, "MACHINE_REMOVED")


def test_a_machine_removed_while_its_session_opens_is_told_at_once(
    site: Site, machine: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcome = Hub._welcome

    async def removed_first(hub: Hub, session: Session) -> None:
        await asyncio.to_thread(remove, site.db, machine)
        await welcome(hub, session)

    monkeypatch.setattr(Hub, "_welcome", removed_first)
    with scripted.session(site, machine) as speaker:
        assert speaker.closed()[0] == wire.CLOSE_REMOVED


def test_a_key_that_opens_sessions_in_a_loop_has_to_wait_and_nobody_else(
    sqlite_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "SESSIONS_BURST", 3)
    monkeypatch.setattr(agents, "SESSIONS_A_SECOND", 0.001)
    copied, other = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "copied", "other")
    with live_server(sqlite_db) as site:
        for _ in range(3):
            with scripted.session(site, copied):
                pass
        with pytest.raises(InvalidStatus) as caught:
            scripted.dial(site, copied.key)
        assert caught.value.response.status_code == 429
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        with scripted.session(site, other) as speaker:
            assert speaker.report().seq == 1


def test_an_address_that_guesses_keys_has_to_wait(sqlite_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "REFUSED_BURST", 3)
    monkeypatch.setattr(agents, "REFUSED_A_SECOND", 0.001)
    with live_server(sqlite_db) as site:
        answers = [refused(site, agent_key())[0] for _ in range(4)]
    assert answers == [401, 401, 401, 429]


def test_a_good_key_is_let_in_whatever_its_address_did(sqlite_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "REFUSED_BURST", 3)
    monkeypatch.setattr(agents, "REFUSED_A_SECOND", 0.001)
    good, removed = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "good", "removed")
    with live_server(sqlite_db) as site:
        while refused(site, agent_key())[0] != 429:
            pass
        with scripted.session(site, good) as speaker:
            assert speaker.report().seq == 1
        remove(sqlite_db, removed)
        assert refused(site, removed.key) == (410, "MACHINE_REMOVED")


def test_a_description_that_could_not_be_taken_in_is_asked_for_again(
    site: Site, machine: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ConnectionError("the database is away")

    stray = wire.AllocationReport("01900000-0000-7000-8000-000000000001", 3, wire.AllocationState.RUNNING)
    monkeypatch.setattr(reports, "described", broken)
    with scripted.session(site, machine) as speaker:
        assert speaker.report(stray).describe == (stray.id,)
        speaker.say("described", wire.Described(()))
        assert eventually(lambda: speaker.report(stray).describe) == (stray.id,)


def test_a_stream_is_asked_for_on_the_session_and_a_no_comes_back(site: Site, machine: Enrolled) -> None:
    heard: list[tuple[str, str, str]] = []
    site.hub.on_stream_refused = lambda *said: heard.append(said)
    ask = wire.OpenStream("s1", "/api/v1/agent/streams/s1", "a1", 1, wire.StreamTarget.SSH)
    loop = site.hub._loop
    with scripted.session(site, machine) as speaker:
        asyncio.run_coroutine_threadsafe(site.hub.ask_stream(machine.ref.id, ask), loop).result(10)
        assert speaker.next(wire.OpenStream) == ask
        speaker.say("stream_refused", wire.StreamRefused("s1", "no such allocation"))
        eventually(lambda: heard)
    assert heard == [(machine.ref.id, "s1", "no such allocation")]
    eventually(lambda: not site.hub.connected(machine.ref.id))
    with pytest.raises(Refusal, match="no open session"):
        asyncio.run_coroutine_threadsafe(site.hub.ask_stream(machine.ref.id, ask), loop).result(10)


def test_what_should_run_is_pushed_when_it_changes(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        speaker.report()
        speaker.next(wire.Desired)
        with site.db.write() as tx:
            tx.wake(Wake.DESIRED, machine.ref.id)
        assert speaker.next(wire.Desired).allocations == ()


def test_a_control_plane_that_stops_says_so_and_a_session_comes_back(db: Database, machine: Enrolled) -> None:
    with live_server(db) as site, scripted.session(site, machine) as speaker:
        speaker.report()
        site.server.should_exit = True
        assert speaker.closed()[0] == 1012
    with live_server(db) as site, scripted.session(site, machine) as speaker:
        assert speaker.welcome.epoch == 2
        assert row_of(db, machine)["state"] == "up"


# ---- hostile words: a session ends with a reason, the others go on

HOSTILE = {
    "not JSON": "hello?",
    "not an object": "[]",
    "no body": '{"type":"report"}',
    "wrong type": '{"type":"report","body":{"seq":"1","release":"","boot_id":"","pid":1,"inventory_digest":""}}',
    "deep": '{"type":"report","body":' + "[" * 100_000 + "]" * 100_000 + "}",
    "half a character": '{"type":"stream_refused","body":{"stream":"\\ud800","message":""}}',
    "huge number": '{"type":"report","body":{"seq":1e999}}',
    "a second hello": codec.encode("hello", wire.Hello(1, "r", "i", "b", 1)),
    "not UTF-8": b'{"type":"\xff"}',
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_frame_that_is_not_the_protocol_ends_that_session_with_a_reason(
    sqlite_db: Database, frame: str | bytes
) -> None:
    good, bad = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "good", "bad")
    with (
        live_server(sqlite_db) as site,
        scripted.session(site, good) as bystander,
        scripted.session(site, bad) as speaker,
    ):
        speaker.ws.send(frame)
        code, reason = speaker.closed()
        assert code == wire.CLOSE_BAD_FRAME
        assert reason
        assert bystander.report().seq == 1


def test_a_frame_over_1_mib_ends_the_session(sqlite_db: Database) -> None:
    (machine,) = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "m1")
    with live_server(sqlite_db) as site, scripted.session(site, machine) as speaker:
        speaker.ws.send("x" * (1024 * 1024 + 1))
        assert speaker.closed()[0] == 1009


def test_a_flood_of_frames_ends_the_session(sqlite_db: Database) -> None:
    (machine,) = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "m1")
    with live_server(sqlite_db) as site, scripted.session(site, machine) as speaker:
        speaker.report()
        with contextlib.suppress(ConnectionClosed):
            for _ in range(500):
                speaker.ws.send('{"type":"of a later release"}')
        assert speaker.closed() == (wire.CLOSE_BAD_FRAME, "too many frames, or too much, in a short time")


def test_a_session_must_begin_with_hello(sqlite_db: Database) -> None:
    (machine,) = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "m1")
    with live_server(sqlite_db) as site, scripted.dial(site, machine.key) as ws:
        ws.send(codec.encode("described", wire.Described(())))
        speaker = scripted.Speaker(ws, wire.Welcome("", "", 0, "", 1.0))
        assert speaker.closed()[0] == wire.CLOSE_BAD_FRAME


def test_words_no_database_keeps_are_cut_and_stored(site: Site, machine: Enrolled) -> None:
    nasty = "\0\x1b[31m\u202e" + "x" * 5_000
    inventory = wire.Inventory(
        nasty, os=nasty, vcpus=-5, memory_mib=10**12, gpus=(wire.Gpu(nasty, nasty, nasty, nasty, 10**12),)
    )
    with scripted.session(site, machine, boot_id=nasty, pid=10**20) as speaker:
        speaker.report(
            inventory=inventory, inventory_digest=nasty, release=nasty, conditions=(wire.Condition(nasty, nasty),)
        )
    row = row_of(site.db, machine)
    assert "\0" not in str(dict(row))
    assert (row["vcpu"], row["ram_mib"]) == (0, 2**31 - 1)
    assert len(row["release"]) <= 40


# ---- many at once


def test_newcomers_beyond_what_can_be_done_at_once_are_told_when_to_come_again(
    sqlite_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.server.agents.MAX_WAITING", 0)
    (machine,) = scripted.enrol(sqlite_db, scripted.tenancy(sqlite_db), "m1")
    with live_server(sqlite_db) as site, pytest.raises(InvalidStatus) as caught:
        scripted.dial(site, machine.key)
    assert caught.value.response.status_code == 503
    assert 5 <= int(caught.value.response.headers["Retry-After"]) <= 30


def test_fifty_machines_at_once_all_get_a_session(site: Site) -> None:
    fleet = scripted.enrol(site.db, scripted.tenancy(site.db, "beta"), *(f"m{n}" for n in range(50)))

    def live(machine: Enrolled) -> int:
        with scripted.session(site, machine) as speaker:
            speaker.report(inventory=INVENTORY)
            return speaker.welcome.epoch

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(live, fleet)) == [1] * 50
    with site.db.read() as tx:
        states = [row["state"] for row in tx.all(select(machines.c.state))]
    assert states == ["up"] * 50


def test_an_older_sessions_words_are_refused_whatever_connection_they_come_by(site: Site, machine: Enrolled) -> None:
    with scripted.session(site, machine) as speaker:
        speaker.report()
        with site.db.write() as tx:  # as if another process had said welcome to a newer hello
            tx.run(update(machines).where(machines.c.id == machine.ref.id).values(session_epoch=7))
        speaker.say_report(conditions=(scripted.FULL_DISK,))
        assert speaker.closed()[0] == wire.CLOSE_SUPERSEDED
    assert row_of(site.db, machine)["conditions"] == []
