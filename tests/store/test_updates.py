"""Rows of updates are an organisation's own, and the database keeps two from going on at once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from corral.domain.updates import Step
from corral.store import updates
from corral.store.database_errors import IntegrityError
from corral.store.transaction import Scope, Tx
from corral.usecases.context import new_id
from tests.world import World


def begun(tx: Tx, world: World) -> str:
    """Make an update of acme's with one machine; return its id."""
    id = new_id(tx.now)
    who = {"cluster_id": world.ids.clusters["default"], "created_by": world.ids.users["admin"]}
    member = {"machine_id": world.ids.machines["m"], "stage": 0, "state": Step.WAITING.value, "message": ""}
    updates.add(tx, Scope(world.ids.orgs["acme"]), {"id": id, "release": "2.0", **who}, [member])
    return id


def test_an_update_is_found_and_changed_in_its_own_organisation_only(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("m")
    machine, cluster = world.ids.machines["m"], world.ids.clusters["default"]
    mine, rival = (Scope(world.ids.orgs[org]) for org in ("acme", "rival"))
    with world.db.write() as tx:
        id = begun(tx, world)
        updates.save(tx, rival, id, {"stage": 2})
        updates.save_machine(tx, rival, id, machine, Step.DONE, "theirs")
        updates.leave_out_waiting(tx, rival, id, "theirs")
    with world.db.read() as tx:
        row = updates.get(tx, mine, id)
        assert row is not None and (row["stage"], row["by"]) == (0, "admin")
        assert (updates.get(tx, rival, id), updates.latest(tx, rival, cluster)) == (None, None)
        assert [len(updates.standing(tx, scope, id, Step.WAITING, None, 9)) for scope in (mine, rival)] == [1, 0]
        assert [len(updates.counts(tx, scope, id)) for scope in (mine, rival)] == [1, 0]
        assert [len(updates.page(tx, scope, id, None, 9)) for scope in (mine, rival)] == [1, 0]
        assert updates.asked_of(tx, rival, machine) is None
        assert updates.behind(tx, rival, cluster, "2.0") == []


def test_a_second_update_beside_one_that_goes_on_is_the_databases_no(world_on_both: World) -> None:
    world_on_both.add_machine("m")
    with world_on_both.db.write() as tx:
        first = begun(tx, world_on_both)
    with pytest.raises(IntegrityError), world_on_both.db.write() as tx:
        begun(tx, world_on_both)
    with world_on_both.db.write() as tx:
        updates.save(tx, Scope(world_on_both.ids.orgs["acme"]), first, {"ended_at": tx.now, "outcome": "done"})
    with world_on_both.db.write() as tx:
        begun(tx, world_on_both)


def test_an_update_is_looked_at_while_it_goes_on_or_somebody_is_waited_for(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("m")
    acme, machine = Scope(world.ids.orgs["acme"]), world.ids.machines["m"]

    def looked_at() -> list[str]:
        with world.db.read() as tx:
            return [row["id"] for row in updates.unsettled(tx)]

    with world.db.write() as tx:
        id = begun(tx, world)
        updates.save_machine(tx, acme, id, machine, Step.ASKED, "")
    assert looked_at() == [id]
    with world.db.write() as tx:
        updates.save(tx, acme, id, {"ended_at": tx.now, "outcome": "stopped"})
    assert looked_at() == [id]
    with world.db.write() as tx:
        updates.save_machine(tx, acme, id, machine, Step.DONE, "")
    assert looked_at() == []


def test_the_pass_reads_no_history(world_on_both: World) -> None:
    """It comes every two seconds, for all tenants: updates that ended, and machines that answered, cost nothing."""
    asked: list[tuple[str, Any]] = []
    with world_on_both.db.write() as tx:

        @event.listens_for(tx.conn, "before_cursor_execute")
        def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
            asked.append((statement, parameters))

        updates.unsettled(tx)
        updates.silent(tx)
        updates.unheeded(tx, tx.now)
        updates.of_other_releases(tx, "2.0")
        sqlite = world_on_both.db.is_sqlite
        if not sqlite:  # on so few rows it would read them all
            tx.conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
        found = [
            (statement, [str(row) for row in tx.conn.exec_driver_sql(f"{explain(sqlite)} {statement}", parameters)])
            for statement, parameters in asked[:4]
        ]
    assert len(found) == 4
    for statement, plan in found:
        scans = [step for step in plan if "Seq Scan" in step or "SCAN" in step]
        assert all(any(index in step for index in OF_WHAT_GOES_ON) for step in scans), (statement, plan)


OF_WHAT_GOES_ON = ("uq_updates_running", "ix_update_machines_asked", "ix_machines_updating")


def explain(sqlite: bool) -> str:
    return "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"
