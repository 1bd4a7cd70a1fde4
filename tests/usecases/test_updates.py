"""One machine's update: asked, told, judged by what it reports (spec 10, "Update agents"), on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy import update as sql_update

from corral.domain.errors import Refusal
from corral.domain.machines import MachineState
from corral.domain.secrets import hashed
from corral.domain.sessions import Hello, Opened, Report
from corral.domain.updates import Said, State
from corral.store import fleet, journal
from corral.store.tables.machines import machines
from corral.store.transaction import Row, Scope
from corral.usecases import machines as machine_use
from corral.usecases import reports, sessions
from corral.usecases import updates as use
from tests.live_server import agent_key
from tests.world import World

SERVED = "2.0"


@pytest.fixture
def world(world_on_both: World) -> World:
    world_on_both.add_machine("m")
    put(world_on_both, release="1.0")
    return world_on_both


def put(world: World, **values: Any) -> None:
    with world.db.write() as tx:
        tx.run(sql_update(machines).where(machines.c.id == world.ids.machines["m"]).values(**values))


def row(world: World) -> Row:
    with world.db.read() as tx:
        found = tx.one(select(machines).where(machines.c.id == world.ids.machines["m"]))
        assert found is not None
        return found


def ask(world: World, served: str = SERVED) -> use.Asked:
    with world.act("admin", "acme") as ctx:
        return use.ask(ctx, "default", "m", served)


def told(world: World, view: str = "event") -> list[tuple[str, str, str, str]]:
    """Return state, before, after and reason of each entry about updates, oldest first."""
    with world.db.read() as tx:
        want = journal.Filter(view=view, types=["cluster.node.upgrade"])
        rows = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=99)
    data = [entry["data"] for entry in reversed(rows)]
    assert all(one["name"] == "m" for one in data)
    return [(one["state"], one["before"], one["after"], one["reason"]) for one in data]


def session(world: World, release: str = "1.0") -> Opened:
    """Have the machine's agent say hello."""
    key = agent_key()
    put(world, key_hash=hashed(key))
    with world.db.write() as tx:
        return sessions.open(tx, key, Hello(1, release, agent_key()[:8], "boot", 1), "10.0.0.1")


def report(world: World, opened: Opened, release: str = "1.0", said: Said | None = None) -> None:
    with world.db.write() as tx:
        reports.receive(tx, opened, Report(release, "", None, (), (), update=said))


def asked_of(world: World, opened: Opened, served: str = SERVED) -> int | None:
    with world.db.read() as tx:
        found = use.told(tx, opened, served)
    return found.number if found else None


def test_a_machine_that_is_behind_is_asked_once_and_told_until_it_is_of_the_release(world: World) -> None:
    asked = ask(world)
    assert not asked.already
    assert asked.machine.row["update_state"] == "asked"
    ask(world)
    assert told(world) == told(world, "audit") == [("asked", "1.0", SERVED, "")]
    opened = session(world)
    assert asked_of(world, opened) == 1
    report(world, opened, said=Said(1, State.RUNNING, "downloads"))
    assert (row(world)["update_state"], row(world)["update_message"]) == ("running", "downloads")
    assert asked_of(world, opened) == 1
    opened = session(world, SERVED)
    report(world, opened, SERVED, Said(1, State.RUNNING, "on trial"))
    assert row(world)["update_state"] == "running"
    opened = session(world, SERVED)
    report(world, opened, SERVED)
    assert asked_of(world, opened) is None
    assert (row(world)["update_state"], row(world)["update_release"], row(world)["update_since"]) == ("", None, None)
    assert told(world) == [("asked", "1.0", SERVED, ""), ("done", "1.0", SERVED, "")]


def test_a_machine_of_the_release_is_asked_nothing(world: World) -> None:
    put(world, release=SERVED)
    assert ask(world).already
    assert row(world)["update_ask"] == 0
    assert told(world) == []


@pytest.mark.parametrize("state", ["down", "idle"])
def test_a_machine_that_is_not_there_is_told_when_it_comes(world: World, state: str) -> None:
    put(world, state=state)
    assert not ask(world).already
    assert asked_of(world, session(world)) == 1


def test_a_failure_is_recorded_once_and_not_told_again_until_somebody_asks(world: World) -> None:
    ask(world)
    opened = session(world)
    for _ in range(3):
        report(world, opened, said=Said(1, State.FAILED, "bad checksum"))
    assert told(world)[1:] == [("failed", "1.0", SERVED, "bad checksum")]
    assert (row(world)["update_state"], row(world)["update_message"]) == ("failed", "bad checksum")
    assert asked_of(world, opened) is None
    ask(world)
    assert asked_of(world, opened) == 2
    report(world, opened, said=Said(1, State.FAILED, "bad checksum"))
    assert row(world)["update_state"] == "asked"
    report(world, opened, said=Said(2, State.FAILED, "disk full"))
    assert [state for state, *_ in told(world)] == ["asked", "failed", "asked", "failed"]


def test_what_failed_and_came_back_with_the_release_after_all_is_done(world: World) -> None:
    ask(world)
    report(world, session(world), said=Said(1, State.FAILED, "gave up"))
    report(world, session(world, SERVED), SERVED)
    assert row(world)["update_state"] == ""
    assert told(world)[-1] == ("done", "1.0", SERVED, "")


def test_a_failure_is_forgotten_when_somebody_put_another_release_on(world: World) -> None:
    ask(world)
    report(world, session(world), said=Said(1, State.FAILED, "bad checksum"))
    report(world, session(world, "3.0"), "3.0")
    assert (row(world)["update_state"], row(world)["update_release"]) == ("", None)
    assert len(told(world)) == 2


def test_words_of_an_update_that_nobody_asked_for_change_nothing(world: World) -> None:
    opened = session(world)
    report(world, opened, said=Said(0, State.FAILED, "x"))
    report(world, opened, said=Said(7, State.RUNNING, "x"))
    assert row(world)["update_state"] == ""
    ask(world)
    report(world, opened, said=Said(7, State.FAILED, "x"))
    assert row(world)["update_state"] == "asked"
    assert [state for state, *_ in told(world)] == ["asked"]


def test_only_the_release_that_the_site_serves_is_told(world: World) -> None:
    ask(world)
    assert asked_of(world, session(world), "3.0") is None


def test_a_failure_found_by_the_site_counts_only_while_the_machine_stands_as_it_was_found(world: World) -> None:
    ask(world)
    opened = session(world)
    report(world, opened, said=Said(1, State.RUNNING, "downloads"))
    with world.db.write() as tx:
        machine_use.set_state(tx, opened.machine, MachineState.DOWN)
    found = row(world)
    with world.db.write() as tx:
        use.settle(tx, found, "silent")
    assert told(world)[-1] == ("failed", "1.0", SERVED, "silent")
    ask(world)
    with world.db.write() as tx:
        use.settle(tx, found, "silent")
    assert row(world)["update_state"] == "asked"


def test_an_ask_wakes_the_machines_session_and_not_placement(world: World) -> None:
    woken: list[Any] = []
    stop = world.db.subscribe(lambda signals, _: woken.extend((signal.wake.value, signal.id) for signal in signals))
    version = _version(world)
    ask(world)
    stop()
    assert woken == [("desired", world.ids.machines["m"])]
    assert _version(world) == version


def _version(world: World) -> int:
    with world.db.read() as tx:
        return fleet.version_of(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])


def test_what_a_machine_says_is_kept_as_every_database_can(world: World) -> None:
    ask(world)
    report(world, session(world), said=Said(1, State.FAILED, "half a \ud800 and \0 nothing" + "x" * 400))
    assert row(world)["update_message"].startswith("half a ? and \ufffd nothing")
    assert len(row(world)["update_message"]) == 300


def test_a_preview_says_what_runs_there_and_changes_nothing(world: World) -> None:
    world.add_workload("dev", "m")
    before = dict(row(world))
    with world.act("admin", "acme") as ctx:
        told_of = use.preview(ctx, "default", "m", SERVED)
    assert (told_of.before, told_of.after) == ("1.0", SERVED)
    assert [work.name for work in told_of.running] == ["dev"]
    assert dict(row(world)) == before


def test_a_machine_of_others_is_none(world: World) -> None:
    with pytest.raises(Refusal) as refused, world.act("rival", "rival") as ctx:
        use.ask(ctx, "default", "m", SERVED)
    assert refused.value.code == "NODE_NOT_FOUND"
