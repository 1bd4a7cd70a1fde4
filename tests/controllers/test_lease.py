"""One control plane process serves a site (design decision 15)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from sqlalchemy import select, update

from corral.controllers.lease import LASTS, Lease, LeaseTaken, is_dead, process_name
from corral.domain.errors import Refusal
from corral.store import engine, lease
from corral.store.engine import Database
from corral.store.tables.site import sites
from tests.conftest import Clock
from tests.live_server import ensure_site, eventually, live_server

ELSEWHERE = "other-host:0a1b2c3d:4026531836:77:12345"


def never() -> None:
    raise AssertionError("the lease was lost")


def hold(db: Database, holder: str) -> None:
    ensure_site(db)
    with db.write() as tx:
        assert lease.take(tx, holder, tx.now + LASTS, None)


def holder(db: Database) -> str | None:
    with db.read() as tx:
        name: str | None = tx.scalar(select(sites.c.lease_holder))
    return name


def test_a_second_process_refuses_to_start_and_says_who_serves(db: Database, clock: Clock) -> None:
    hold(db, ELSEWHERE)
    with pytest.raises(LeaseTaken, match="process 77 on other-host, at least until 2026-03-01T12:00:15Z"):
        asyncio.run(Lease(db, never).start())
    assert holder(db) == ELSEWHERE
    with pytest.raises(RuntimeError, match="did not start"), live_server(db):
        pass


def test_a_lease_that_is_over_may_be_taken(db: Database, clock: Clock) -> None:
    hold(db, ELSEWHERE)
    clock.forward(LASTS.total_seconds())
    mine = Lease(db, never)
    asyncio.run(mine.start())
    assert holder(db) == process_name()
    asyncio.run(mine.stop())
    assert holder(db) is None


def test_a_holder_that_died_on_this_host_delays_nobody(db: Database) -> None:
    program = "from corral.controllers.lease import process_name; print(process_name())"
    environment = {**os.environ, "PYTHONPATH": "src"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    hold(db, done.stdout.strip())
    mine = Lease(db, never)
    asyncio.run(mine.start())
    assert holder(db) == process_name()
    asyncio.run(mine.stop())


def test_only_a_process_of_this_host_this_boot_and_this_namespace_is_known_to_be_dead() -> None:
    host, boot, namespace, pid, started = process_name().split(":")
    assert len(process_name()) <= 64
    assert not is_dead(process_name())
    assert is_dead(f"{host}:{boot}:{namespace}:{pid}:{int(started) + 1}")  # the number was given again
    assert not is_dead(f"elsewhere:{boot}:{namespace}:4194304:1")
    assert not is_dead(f"{host}:00000000:{namespace}:4194304:1")
    assert not is_dead(f"{host}:{boot}:1:4194304:1")
    assert not is_dead("a word of a later release")


def test_a_process_that_lost_its_lease_writes_nothing_more_and_stops(db: Database) -> None:
    ensure_site(db)
    lost = threading.Event()
    mine = Lease(db, lost.set, every_s=0.01)
    asyncio.run(mine.start())
    with db.write() as tx:  # as if it had been stopped for so long that another one took over
        lease.give_back(tx, process_name())
        assert lease.take(tx, ELSEWHERE, tx.now + LASTS, None)
    assert lost.wait(20)
    with pytest.raises(Refusal, match="lost the site"), db.write():
        pass
    asyncio.run(mine.stop())
    assert holder(db) == ELSEWHERE


def test_a_served_site_stops_serving_when_the_lease_is_lost(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.controllers.lease.RENEW_EVERY_S", 0.05)
    with live_server(db) as site:
        with db.write() as tx:
            lease.give_back(tx, process_name())
            assert lease.take(tx, ELSEWHERE, tx.now + LASTS, None)
        eventually(lambda: site.server.should_exit)
    assert holder(db) == ELSEWHERE


def test_the_lease_is_renewed_and_given_back(db: Database, clock: Clock) -> None:
    ensure_site(db)
    mine = Lease(db, never, every_s=0.01)
    asyncio.run(mine.start())
    clock.forward(10)

    def renewed() -> bool:
        with db.read() as tx:
            return bool(tx.scalar(select(sites.c.lease_until)) == clock.now + LASTS)

    eventually(renewed)
    asyncio.run(mine.stop())
    assert holder(db) is None


def test_a_process_that_was_away_for_longer_than_its_lease_writes_nothing_until_it_has_renewed_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_site(db)
    mine = Lease(db, never, every_s=1000)
    asyncio.run(mine.start())
    began = engine.boot_time()
    with pytest.raises(Refusal, match="renew its lease"), db.write() as tx:  # stopped in the middle of a transaction
        tx.run(update(sites).values(contact="lost"))
        monkeypatch.setattr(engine, "boot_time", lambda: began + LASTS.total_seconds() + 1)
    with pytest.raises(Refusal, match="renew its lease"), db.write():
        pass
    with db.read() as tx:
        assert tx.scalar(select(sites.c.contact)) == ""
    assert mine._take()
    with db.write() as tx:
        tx.run(update(sites).values(contact="kept"))
    asyncio.run(mine.stop())
    assert holder(db) is None
