"""kill -9 of a control plane that tells: every event is told, under one id, and each alert is made once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from corral.domain.events import Entry, Subject
from corral.server.sealing import SiteKey
from corral.store.engine import Database
from corral.store.tables.alerts import alerts, deliveries
from corral.store.tables.site import sites
from corral.store.transaction import SITE
from corral.usecases import alert_rules, webhooks
from corral.usecases.alert_rules import Asked, Told
from tests.live_server import eventually
from tests.receivers import Answer, Received, Receiver, http_receiver
from tests.world import World

SEED = int(os.environ.get("CORRAL_TEST_SEED", "7"))


@contextmanager
def site(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Run a control plane on the world's database, as its own process; killed at the end."""
    folder = world.config.state_dir
    command = [sys.executable, "-m", "corral", "site", "serve", "--port", "0", "--state-dir", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    environment |= {"CORRAL_DATABASE": world.db.url.render_as_string(hide_password=False)}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def world(db_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[World]:
    """A world whose acme has a webhook for machines' events and a rule that tells by it, and ten machines."""
    db = Database(db_url)
    world = World(db, tmp_path / "state", app=FastAPI())
    for number in range(10):
        world.add_machine(f"gpu-{number}")
    with db.write() as tx:
        tx.run(update(sites).values(private_targets=["127.0.0.0/8"], notified_seq=0))
    with world.act("admin", org="acme") as ctx:
        key = SiteKey(world.config.state_dir)
        hook = webhooks.create(ctx, key, webhooks.Asked("hook", receiver.url, ["cluster.node.down"])).row
        alert_rules.create(ctx, key, Asked("rule", ["machine_down"], told=Told(webhook=hook["id"])))
    yield world
    db.close()


def down(world: World, number: int) -> None:
    ids = world.ids
    subject = Subject(ids.orgs["acme"], ids.clusters["default"], machine=ids.machines[f"gpu-{number}"])
    with world.db.write() as tx:
        tx.record(Entry("cluster.node.down", subject, {"name": f"gpu-{number}"}), SITE)


def waiting(world: World) -> list[Any]:
    with world.db.read() as tx:
        return list(tx.all(select(deliveries).where(deliveries.c.next_at.is_not(None))))


def count(world: World, table: Any) -> int:
    with world.db.read() as tx:
        return len(tx.all(select(table.c.id)))


def test_killed_between_sending_and_writing_down_it_sends_again_under_the_same_id(
    world: World, receiver: Receiver
) -> None:
    victims: list[subprocess.Popen[bytes]] = []

    def kill(_: Received) -> Answer:
        # It was taken, and nobody lives to hear that.
        victims.pop().send_signal(signal.SIGKILL)
        receiver.answer = lambda _: Answer()
        return Answer()

    receiver.answer = kill
    with world.act("admin", org="acme") as ctx:
        (hook,) = webhooks.listed(ctx, None, 9)
        webhooks.test(ctx, hook["id"], "https://corral.test")
    with site(world) as process:
        victims.append(process)
        assert process.wait(60) == -signal.SIGKILL
    assert len(waiting(world)) == 1
    with site(world):
        eventually(lambda: not waiting(world), 60)
    ids = [one.headers["webhook-id"] for one in receiver.received]
    assert len(ids) == 2 and len(set(ids)) == 1


def test_killed_while_it_tells_it_tells_everything_and_makes_each_alert_once(world: World, receiver: Receiver) -> None:
    victims: list[subprocess.Popen[bytes]] = []
    last = random.Random(SEED).randint(1, 15)

    def kill(_: Received) -> Answer:
        if len(receiver.received) >= last and victims:
            victims.pop().send_signal(signal.SIGKILL)
        return Answer()

    receiver.answer = kill
    with site(world) as process:
        victims.append(process)
        for number in range(10):
            down(world, number)
        assert process.wait(60) == -signal.SIGKILL
    with site(world):
        eventually(lambda: count(world, deliveries) == 20 and not waiting(world), 90)
    assert count(world, alerts) == 10
    told = Counter(one.headers["webhook-id"] for one in receiver.received)
    assert len(told) == 20
