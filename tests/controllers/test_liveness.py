"""Marking silent machines Down, by a clock that the test moves (spec 10, "Machine states"; facts, cases 1-6)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select

from corral.controllers.heard import Heard
from corral.controllers.liveness import Liveness
from corral.domain.liveness import SUSPECT_PRESSURE
from corral.domain.machines import MachineState
from corral.store import journal
from corral.store import machines as machine_rows
from corral.store.engine import Database
from corral.store.tables.machines import liveness, machines
from corral.store.transaction import Scope
from tests import scripted_agent as scripted
from tests.conftest import Clock
from tests.live_server import Monotonic
from tests.scripted_agent import Enrolled


class Process:
    """A control plane process as liveness sees it: what it heard, and its loop's beat."""

    def __init__(self, db: Database, clock: Clock, monotonic: Monotonic) -> None:
        self.db, self.clock, self.monotonic = db, clock, monotonic
        self.heard = Heard(monotonic)
        self.again: list[str] = []
        self.liveness = Liveness(db, self.heard, 5.0, self.again.append)

    def pass_time(self, seconds: float, reporting: Sequence[Enrolled] = ()) -> None:
        """Let time pass as a running process does: beats, reports, and a pass every 5 s."""
        while seconds > 0:
            step = min(5.0, seconds)
            seconds -= step
            self.clock.forward(step)
            self.monotonic.forward(step)
            self.heard.beat()
            for machine in reporting:
                self.heard.note(machine.ref.id)
            self.liveness.flush()
            self.liveness.judge()

    def states(self) -> dict[str, str]:
        with self.db.read() as tx:
            return {row["name"]: row["state"] for row in tx.all(select(machines.c.name, machines.c.state))}

    def entries(self, kind: str, scope: Scope | None) -> int:
        with self.db.read() as tx:
            return len(journal.newest_first(tx, scope, journal.Filter(types=[kind]), before=None, limit=1000))


@pytest.fixture
def process(db: Database, clock: Clock) -> Process:
    return Process(db, clock, Monotonic())


def up(db: Database, *names: str, slug: str = "acme") -> list[Enrolled]:
    """Enrol machines that have reported once."""
    fleet = scripted.enrol(db, scripted.tenancy(db, slug), *names)
    with db.write() as tx:
        for machine in fleet:
            machine_rows.set_state(tx, machine.ref, [MachineState.IDLE], MachineState.UP)
    return fleet


def test_a_machine_is_down_after_60_seconds_without_a_report(db: Database, process: Process) -> None:
    silent, other, third = up(db, "silent", "other", "third")
    process.pass_time(30, [silent, other, third])
    process.pass_time(55, [other, third])
    assert process.states() == {"silent": "up", "other": "up", "third": "up"}
    process.pass_time(5, [other, third])
    assert process.states() == {"silent": "down", "other": "up", "third": "up"}
    process.pass_time(120, [other, third])
    assert process.entries("cluster.node.down", Scope(silent.ref.org_id)) == 1


def test_a_machine_that_never_reported_stays_idle(db: Database, process: Process) -> None:
    scripted.enrol(db, scripted.tenancy(db), "new")
    process.pass_time(300)
    assert process.states() == {"new": "idle"}


def test_an_hours_outage_of_the_site_marks_nothing_down_and_what_was_down_stays_so(
    db: Database, clock: Clock, process: Process
) -> None:
    fleet = up(db, "a", "b", "c", "was-down")
    process.pass_time(30, fleet)
    process.pass_time(60, fleet[:3])
    assert process.states()["was-down"] == "down"
    clock.forward(3_600)
    again = Process(db, clock, Monotonic())  # the process that starts after the outage
    again.pass_time(55)
    assert again.states() == {"a": "up", "b": "up", "c": "up", "was-down": "down"}
    again.pass_time(300, fleet[:2])  # c never came back
    assert again.states() == {"a": "up", "b": "up", "c": "down", "was-down": "down"}


def test_a_process_that_was_stopped_for_minutes_counts_silence_anew(db: Database, process: Process) -> None:
    fleet = up(db, "a", "b")
    process.pass_time(30, fleet)
    process.clock.forward(300)
    process.monotonic.forward(300)  # suspended: its loop heard nobody
    process.liveness.judge()
    process.heard.beat()
    process.liveness.judge()
    assert process.states() == {"a": "up", "b": "up"}
    process.pass_time(60, fleet[:1])
    assert process.states() == {"a": "up", "b": "down"}


def test_steps_of_the_wall_clock_mark_nothing_down_and_hide_nothing(
    db: Database, clock: Clock, process: Process
) -> None:
    fleet = up(db, "a", "b")
    process.pass_time(30, fleet)
    clock.forward(7_200)
    process.pass_time(10, fleet)
    assert process.states() == {"a": "up", "b": "up"}
    clock.forward(-14_400)
    process.pass_time(60, fleet[:1])
    assert process.states() == {"a": "up", "b": "down"}


def test_last_seen_is_written_on_the_databases_clock(db: Database, clock: Clock, process: Process) -> None:
    (machine,) = up(db, "a")
    process.heard.note(machine.ref.id)
    clock.forward(3)
    process.monotonic.forward(3)
    process.liveness.flush()
    with db.read() as tx:
        assert tx.scalar(select(liveness.c.last_seen)) == clock.now - timedelta(seconds=3)


def test_a_report_between_judging_and_marking_wins(db: Database, process: Process) -> None:
    (machine, other) = up(db, "a", "b")
    process.pass_time(30, [machine, other])
    # Its next report comes at the last moment: when liveness already says that it is news.
    process.liveness._hear_again = process.heard.note
    process.pass_time(90, [other])
    assert process.states() == {"a": "up", "b": "up"}


def test_before_it_marks_down_it_makes_the_next_report_news(db: Database, process: Process) -> None:
    (machine, other) = up(db, "a", "b")
    process.pass_time(30, [machine, other])
    process.pass_time(60, [other])
    assert process.again == [machine.ref.id]


def test_when_most_fall_silent_together_the_site_suspects_itself(db: Database, process: Process) -> None:
    fleet = up(db, *(f"m{n}" for n in range(8)))
    process.pass_time(30, fleet)
    process.pass_time(60, fleet[:3])
    assert set(process.states().values()) == {"up"}
    assert process.entries("site.suspected", None) == 1
    assert process.liveness.suspect == {machine.ref.id for machine in fleet[3:]}
    with db.read() as tx:
        rows = tx.all(select(machines.c.name, machines.c.pressure))
    assert {row["name"] for row in rows if row["pressure"] == SUSPECT_PRESSURE} == {f"m{n}" for n in range(3, 8)}
    process.pass_time(290, fleet[:4])  # one comes back
    assert set(process.states().values()) == {"up"}
    process.pass_time(20, fleet[:4])
    assert sorted(name for name, state in process.states().items() if state == "down") == ["m4", "m5", "m6", "m7"]
    assert process.liveness.suspect == frozenset()
    assert process.entries("site.suspected", None) == 1


def test_machines_of_several_organisations_go_down_in_one_pass(db: Database, process: Process) -> None:
    mine, theirs = up(db, "a", "b", "c"), up(db, "x", "y", "z", slug="rival")
    process.pass_time(30, [*mine, *theirs])
    process.pass_time(60, [*mine[1:], *theirs[1:]])
    assert sorted(name for name, state in process.states().items() if state == "down") == ["a", "x"]


def test_a_database_that_is_away_loses_nothing_that_was_heard(db: Database, process: Process) -> None:
    (machine,) = up(db, "a")
    process.heard.note(machine.ref.id)
    db.fenced = "away"
    process.liveness._pass_once()
    db.fenced = ""
    process.liveness._pass_once()
    with db.read() as tx:
        assert tx.scalar(select(liveness.c.machine_id)) == machine.ref.id
