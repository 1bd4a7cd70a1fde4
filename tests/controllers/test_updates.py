"""A cluster's agents are updated in stages, whatever restarts meanwhile (spec 10), on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from corral.controllers.updates import Updates
from corral.domain import updates as rules
from corral.domain.errors import Refusal
from corral.domain.updates import COME_BACK_WITHIN, Outcome
from corral.store import journal
from corral.store.machines import ref_of
from corral.store.tables.machines import machines
from corral.store.tables.updates import update_machines
from corral.store.transaction import Row, Scope
from corral.usecases import removal
from corral.usecases import staged_updates as use
from corral.usecases import updates as one
from tests.conftest import Clock
from tests.world import World

SERVED = "2.0"
TEN_MINUTES = COME_BACK_WITHIN.total_seconds()


class Fleet:
    """Machines of acme that are behind, and the loop that updates them."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.restart()

    def add(self, *names: str, **values: Any) -> None:
        for name in names:
            self.world.add_machine(name, gpu_count=0)
            self.put(name, release="1.0", **values)

    def put(self, name: str, **values: Any) -> None:
        with self.world.db.write() as tx:
            tx.run(update(machines).where(machines.c.id == self.world.ids.machines[name]).values(**values))

    def start(self) -> use.Progress:
        with self.world.act("admin", "acme") as ctx:
            return use.start(ctx, "default", SERVED)

    def progress(self) -> use.Progress:
        with self.world.act("admin", "acme") as ctx:
            return use.progress(ctx, "default", None, 1000)

    def go_on(self, served: str = SERVED) -> None:
        """Have a control plane that has just started make one pass."""
        Updates(self.world.db, 1.0, served).pass_once()

    def run_for(self, seconds: float) -> None:
        """Have one control plane, which goes on when this is called again, make a pass every half a minute and at
        the end."""
        self._runs.pass_once()
        while seconds > 0:
            self.clock.forward(min(30.0, seconds))
            seconds -= 30.0
            self._runs.pass_once()

    def restart(self) -> None:
        self._runs = Updates(self.world.db, 1.0, SERVED)

    def asked(self) -> list[str]:
        """Return the machines that are asked and have not answered, by name."""
        with self.world.db.read() as tx:
            busy = machines.c.update_state.in_(("asked", "running"))
            return [row["name"] for row in tx.all(select(machines).where(busy).order_by(machines.c.name))]

    def done(self, *names: str) -> None:
        """Have machines come back with the release, as their reports say it."""
        for name in names:
            self._judge(name, SERVED, None)

    def failed(self, name: str, why: str) -> None:
        ask = self.row(name)["update_ask"]
        self._judge(name, "1.0", rules.Said(ask, rules.State.FAILED, why))

    def _judge(self, name: str, release: str, said: rules.Said | None) -> None:
        row = self.row(name)
        ref = ref_of(row)
        self.put(name, release=release)
        with self.world.db.write() as tx:
            one.judge(tx, ref, row, release, said)

    def row(self, name: str) -> Row:
        with self.world.db.read() as tx:
            row = tx.one(select(machines).where(machines.c.id == self.world.ids.machines[name]))
            assert row is not None
            return row

    def steps(self) -> dict[str, str]:
        return {member.name: member.step.value for member in self.progress().members}

    def told(self, kind: str = "cluster.update") -> list[dict[str, Any]]:
        with self.world.db.read() as tx:
            want = journal.Filter(view="event", types=[kind])
            rows = journal.newest_first(tx, Scope(self.world.ids.orgs["acme"]), want, before=None, limit=200)
        return [row["data"] for row in reversed(rows)]


@pytest.fixture
def fleet(world_on_both: World, clock: Clock) -> Iterator[Fleet]:
    yield Fleet(world_on_both, clock)


def twenty() -> list[str]:
    return [f"m{n:02}" for n in range(20)]


def test_one_then_a_tenth_then_the_rest_each_after_the_one_before_came_back(fleet: Fleet) -> None:
    fleet.add(*twenty())
    begun = fleet.start()
    assert [sum(stage.values()) for stage in begun.counts] == [1, 2, 17]
    assert fleet.asked() == []
    stages = []
    while fleet.progress().outcome is Outcome.RUNNING:
        fleet.go_on()
        fleet.go_on()
        stages.append((fleet.progress().stage, fleet.asked()))
        fleet.done(*fleet.asked())
    assert stages == [(0, ["m00"]), (1, ["m01", "m02"]), (2, twenty()[3:]), (2, [])]
    assert set(fleet.steps().values()) == {"done"}
    assert fleet.progress().outcome is Outcome.DONE
    assert [(one["state"], one["release"]) for one in fleet.told()] == [("started", SERVED), ("done", SERVED)]
    assert fleet.told()[0]["machines"] == 20
    upgrades = [one["state"] for one in fleet.told("cluster.node.upgrade")]
    assert (upgrades.count("asked"), upgrades.count("done"), len(upgrades)) == (20, 20, 40)


def test_of_a_large_stage_only_some_are_asked_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "AT_ONCE", 5)
    fleet.add(*twenty())
    fleet.start()
    for _ in range(2):
        fleet.go_on()
        fleet.done(*fleet.asked())
    fleet.go_on()
    assert fleet.asked() == twenty()[3:8]
    fleet.done("m03", "m04")
    fleet.go_on()
    assert fleet.asked() == twenty()[5:10]


def test_a_machine_that_does_not_heed_an_ask_by_name_for_ten_minutes_has_failed(fleet: Fleet) -> None:
    fleet.add("m", state="up")
    with fleet.world.act("admin", "acme") as ctx:
        one.ask(ctx, "default", "m", SERVED)
    fleet.run_for(TEN_MINUTES - 1)
    assert fleet.asked() == ["m"]
    fleet.run_for(1)
    fleet.run_for(0)
    assert fleet.asked() == []
    assert fleet.row("m")["update_message"].startswith("it has been connected for 10 minutes and has not begun")
    assert [told["state"] for told in fleet.told("cluster.node.upgrade")] == ["asked", "failed"]
    fleet.done("m")  # somebody followed the advice
    assert fleet.row("m")["update_state"] == ""


@pytest.mark.parametrize("how", ["away", "just back", "works on it"])
def test_a_machine_that_could_not_heed_an_ask_for_ten_minutes_is_waited_for(fleet: Fleet, how: str) -> None:
    fleet.add("m", state="down" if how == "away" else "up")
    with fleet.world.act("admin", "acme") as ctx:
        one.ask(ctx, "default", "m", SERVED)
    fleet.run_for(TEN_MINUTES - 1)
    if how == "just back":
        fleet.put("m", state_since=fleet.clock.now)
    if how == "works on it":
        fleet.put("m", update_state="running")
    fleet.run_for(1)
    assert fleet.asked() == ["m"]


@pytest.mark.parametrize("how", ["by name", "in a stage"])
@pytest.mark.parametrize("away", ["restarted", "cut off from its database"])
def test_time_in_which_the_control_plane_was_away_is_not_the_machines(fleet: Fleet, how: str, away: str) -> None:
    fleet.add("m", state="up")
    if how == "in a stage":
        fleet.start()
    else:
        with fleet.world.act("admin", "acme") as ctx:
            one.ask(ctx, "default", "m", SERVED)
    fleet.run_for(TEN_MINUTES - 1)
    fleet.clock.forward(2 * TEN_MINUTES)
    if away == "restarted":
        fleet.restart()
    fleet.run_for(TEN_MINUTES - 1)
    assert fleet.asked() == ["m"]
    fleet.run_for(1)
    assert fleet.asked() == []
    assert fleet.row("m")["update_state"] == "failed"


def test_a_machine_that_begins_while_it_is_given_up_goes_on(fleet: Fleet) -> None:
    fleet.add("m", state="up")
    with fleet.world.act("admin", "acme") as ctx:
        one.ask(ctx, "default", "m", SERVED)
    found = fleet.row("m")
    for changed in ({"update_state": "running"}, {"update_state": "asked", "state_since": fleet.clock.now + SOON}):
        fleet.put("m", **changed)
        with fleet.world.db.write() as tx:
            one.settle(tx, found, "it has not begun")
        assert fleet.asked() == ["m"]


SOON = timedelta(seconds=1)


def test_it_stops_at_the_first_that_says_it_failed(fleet: Fleet) -> None:
    fleet.add(*twenty())
    fleet.start()
    fleet.go_on()
    fleet.failed("m00", "bad checksum")
    fleet.go_on()
    fleet.go_on()
    told = fleet.progress()
    assert told.outcome is Outcome.FAILED
    assert told.message == "stopped, because m00 did not come back: bad checksum"
    assert fleet.asked() == []
    assert fleet.steps() == {"m00": "failed", **dict.fromkeys(twenty()[1:], "left_out")}
    assert fleet.told()[-1] == {"state": "failed", "release": SERVED, "reason": told.message}
    assert all(fleet.row(name)["release"] == "1.0" for name in twenty())


@pytest.mark.parametrize("how", ["silent", "late"])
def test_it_stops_at_the_first_that_does_not_come_back(fleet: Fleet, how: str) -> None:
    fleet.add(*twenty())
    fleet.start()
    fleet.go_on()
    fleet.done("m00")
    fleet.go_on()
    fleet.done("m01")
    if how == "silent":
        fleet.put("m02", state="down")
    else:
        fleet.run_for(TEN_MINUTES)
    fleet.go_on()
    told = fleet.progress()
    assert (told.outcome, told.stage) == (Outcome.FAILED, 1)
    assert "m02 did not come back" in told.message
    assert fleet.steps()["m01"] == "done" and fleet.steps()["m02"] == "failed" and fleet.steps()["m03"] == "left_out"
    assert fleet.row("m02")["update_state"] == "failed"
    assert fleet.told("cluster.node.upgrade")[-1]["state"] == "failed"
    fleet.done("m02")
    assert fleet.told("cluster.node.upgrade")[-1]["state"] == "done"


def test_those_that_were_asked_go_on_when_another_failed(fleet: Fleet) -> None:
    fleet.add(*twenty())
    fleet.start()
    fleet.go_on()
    fleet.done("m00")
    fleet.go_on()
    fleet.failed("m01", "no room")
    fleet.go_on()
    assert fleet.steps()["m02"] == "asked" and fleet.asked() == ["m02"]
    fleet.done("m02")
    fleet.go_on()
    assert fleet.steps()["m02"] == "done"
    assert fleet.progress().outcome is Outcome.FAILED
    assert len(fleet.told()) == 2


def test_who_is_down_or_failed_with_the_release_before_is_left_out_and_said(fleet: Fleet) -> None:
    fleet.add("a", "b")
    fleet.add("c", state="down")
    fleet.add("d", update_state="failed", update_release=SERVED, update_message="no room")
    fleet.add("e", update_state="failed", update_release="1.5")
    fleet.add("f")
    fleet.put("f", release=SERVED)
    fleet.start()
    members = {member.name: member for member in fleet.progress().members}
    assert {name for name, member in members.items() if member.step.value == "left_out"} == {"c", "d"}
    assert members["c"].message == "it is down" and "no room" in members["d"].message
    assert "f" not in members
    for _ in range(4):
        fleet.go_on()
        fleet.done(*fleet.asked())
    assert fleet.progress().outcome is Outcome.DONE
    assert fleet.row("c")["update_ask"] == fleet.row("d")["update_ask"] == 0


def test_who_goes_down_or_is_removed_before_its_turn_is_left_out(fleet: Fleet) -> None:
    fleet.add(*twenty()[:4])
    fleet.start()
    fleet.go_on()
    fleet.put("m01", state="down")
    with fleet.world.act("admin", "acme") as ctx:
        removal.remove(ctx, "default", "m02", force=False)
    fleet.done("m00")
    for _ in range(3):
        fleet.go_on()
    assert fleet.asked() == ["m03"]
    fleet.done("m03")
    fleet.go_on()
    assert fleet.progress().outcome is Outcome.DONE
    assert fleet.steps() == {"m00": "done", "m01": "left_out", "m02": "left_out", "m03": "done"}


def test_one_that_was_asked_by_name_meanwhile_is_not_asked_twice(fleet: Fleet) -> None:
    fleet.add("a", "b")
    fleet.start()
    with fleet.world.act("admin", "acme") as ctx:
        one.ask(ctx, "default", "a", SERVED)
    fleet.go_on()
    assert fleet.steps() == {"a": "asked", "b": "waiting"}
    assert len(fleet.told("cluster.node.upgrade")) == 1


def test_only_one_goes_on_at_a_time_for_an_organisation_in_a_cluster(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.world.add_machine("theirs", "rival")
    fleet.put("theirs", release="1.0")
    fleet.start()
    with pytest.raises(Refusal) as refused:
        fleet.start()
    assert refused.value.code == "CONFLICT" and "stop-update" in refused.value.message
    with fleet.world.act("rival", "rival") as ctx:
        assert use.start(ctx, "default", SERVED).outcome is Outcome.RUNNING
    fleet.go_on()
    fleet.done("a")
    fleet.go_on()
    fleet.put("a", release="1.0")
    assert fleet.start().outcome is Outcome.RUNNING


def test_stopped_it_asks_nobody_more_and_who_was_asked_goes_on(fleet: Fleet) -> None:
    fleet.add(*twenty())
    fleet.start()
    fleet.go_on()
    for _ in range(2):
        with fleet.world.act("admin", "acme") as ctx:
            told = use.stop(ctx, "default")
    assert (told.outcome, told.message) == (Outcome.STOPPED, "stopped by admin")
    fleet.go_on()
    assert fleet.asked() == ["m00"]
    fleet.done("m00")
    fleet.go_on()
    assert fleet.steps() == {"m00": "done", **dict.fromkeys(twenty()[1:], "left_out")}
    assert [one["state"] for one in fleet.told()] == ["started", "stopped"]


def test_where_nobody_is_behind_nothing_is_started(fleet: Fleet) -> None:
    fleet.add("a", state="down")
    told = fleet.start()
    assert (told.id, told.outcome) == (None, Outcome.DONE)
    assert "nothing was asked" in told.message
    assert fleet.told() == []
    with pytest.raises(Refusal) as refused:
        fleet.progress()
    assert refused.value.code == "NOT_FOUND"


def test_a_preview_names_each_machines_stage_in_pages_and_changes_nothing(fleet: Fleet) -> None:
    fleet.add(*twenty())
    fleet.world.add_workload("dev", "m00")
    found, after = [], None
    while True:
        with fleet.world.act("admin", "acme") as ctx:
            page = use.preview(ctx, "default", SERVED, after, 7).members
        if not page:
            break
        found += [(member.name, member.stage) for member in page]
        after = page[-1].stage, page[-1].name
    assert found[:4] == [("m01", 0), ("m02", 1), ("m03", 1), ("m00", 2)]
    assert sorted(name for name, _ in found) == twenty()
    with fleet.world.db.read() as tx:
        assert tx.all(select(update_machines)) == []
    assert fleet.told() == [] and fleet.asked() == []


def test_when_the_site_serves_another_release_it_ends_and_says_so(fleet: Fleet) -> None:
    fleet.add(*twenty())
    fleet.start()
    fleet.go_on()
    fleet.go_on("3.0")
    assert fleet.asked() == []
    assert "serves release 3.0 now" in fleet.row("m00")["update_message"]
    told = fleet.progress()
    assert (told.outcome, told.message) == (Outcome.STOPPED, "the site serves release 3.0 now")
    assert "left_out" in fleet.steps()["m19"]


def test_a_machine_asked_by_name_that_falls_silent_at_work_has_failed(fleet: Fleet) -> None:
    fleet.add("a", "b")
    for name in ("a", "b"):
        with fleet.world.act("admin", "acme") as ctx:
            one.ask(ctx, "default", name, SERVED)
    fleet.put("a", update_state="running", state="down")
    fleet.put("b", state="down")  # it was down, or away, before it said that it works on it: it is told when it comes
    fleet.go_on()
    fleet.go_on()
    assert (fleet.row("a")["update_state"], fleet.row("b")["update_state"]) == ("failed", "asked")
    assert [one["state"] for one in fleet.told("cluster.node.upgrade")] == ["asked", "asked", "failed"]


def test_one_update_that_cannot_go_on_does_not_hold_up_the_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.add("a")
    fleet.world.add_machine("theirs", "rival")
    fleet.put("theirs", release="1.0")
    fleet.start()
    with fleet.world.act("rival", "rival") as ctx:
        use.start(ctx, "default", SERVED)
    advance, mine = use.advance, fleet.world.ids.orgs["acme"]

    def broken(tx: Any, update: Row, served: str, watched_since: datetime) -> None:
        if update["org_id"] == mine:
            raise RuntimeError("a fault")
        advance(tx, update, served, watched_since)

    monkeypatch.setattr(use, "advance", broken)
    fleet.go_on()
    assert fleet.asked() == ["theirs"]
