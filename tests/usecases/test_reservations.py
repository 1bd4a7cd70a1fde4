"""Reservations made, judged against others, seen and removed (spec 10, "Reservations"), on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from corral.domain import reservations as rules
from corral.domain.errors import Refusal
from corral.domain.reservations import Given, State
from corral.store import journal
from corral.store import reservations as rows
from corral.store.tables.access import access, access_pools
from corral.store.tables.machines import machines
from corral.store.tables.workloads import allocations
from corral.store.transaction import Scope, Tx
from corral.usecases import clusters, machine_labels, reservations, workspaces
from corral.usecases import machines as machine_acts
from corral.usecases.reservations import Details, Preview, Reservation, Wanted
from tests.conftest import Clock
from tests.world import World

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def at(hours: float) -> str:
    """Return a time so many hours after the tests' clock begins."""
    return rules.utc(NOON + timedelta(hours=hours))


def asked(start: float, end: float, nodes: Sequence[str] = (), pool: str | None = None, **more: Any) -> Given:
    return Given(at(start), at(end), {"pool": pool} if pool is not None else None, nodes, **more)


def make(world: World, given: Given, cluster: str = "default") -> Reservation:
    with world.act("admin", "acme") as ctx:
        return reservations.create(ctx, cluster, given)


def refused(world: World, given: Given) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        make(world, given)
    return refusal.value


def preview(world: World, given: Given) -> Preview:
    with world.act("admin", "acme") as ctx:
        return reservations.preview(ctx, "default", given)


def shown(world: World, id: str, who: str = "admin") -> Details:
    with world.act(who, "acme") as ctx:
        return reservations.one(ctx, "default", id)


def listed(world: World, want: Wanted | None = None, who: str = "admin") -> list[str]:
    with world.act(who, "acme") as ctx:
        return [one.id for one in reservations.listed(ctx, "default", want or Wanted(), None, 100)]


def remove(world: World, id: str) -> Details:
    with world.act("admin", "acme") as ctx:
        return reservations.remove(ctx, "default", id)


def relabel(world: World, machine: str, pool: str) -> None:
    with world.act("admin", "acme") as ctx:
        machine_labels.place(ctx, "default", machine, {"pool": pool})


def limit(world: World, workload: str, ends: float) -> None:
    """Give placed work a time limit that is over so many hours after the clock begins."""
    must_end_by = rules.moment(at(ends), "test")
    with world.db.write() as tx:
        held = allocations.c.id == world.ids.allocations[workload]
        tx.run(update(allocations).where(held).values(must_end_by=must_end_by))


def entries(world: World, view: str = "audit") -> list[tuple[str, dict[str, Any]]]:
    with world.db.read() as tx:
        want = journal.Filter(view=view)
        found = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=99)
        return [(row["type"], row["data"]) for row in reversed(found) if row["type"].startswith("cluster.reservation")]


def touched(world: World) -> set[str]:
    """Return the machines that changed for placement at the tenancy's latest version."""
    with world.db.read() as tx:
        newest = select(machines.c.fleet_version).order_by(machines.c.fleet_version.desc()).limit(1)
        found = tx.all(select(machines.c.name).where(machines.c.fleet_version == tx.scalar(newest)))
        return {row["name"] for row in found}


def grant(world: World, workspace: str, pool: str) -> None:
    with world.db.write() as tx:
        row = {"workspace_id": world.ids.workspaces[workspace], "cluster_id": world.ids.clusters["default"]}
        tx.run(insert(access).values(**row, org_id=world.ids.orgs["acme"], changed_at=tx.now))
        tx.run(insert(access_pools).values(**row, pool=pool))


# --- made


def test_a_reservation_is_kept_as_it_was_asked_for(world_on_both: World) -> None:
    world_on_both.add_machine("b", pool="h100")
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(1, 3, ["b", "a"], "h100", workspaces=["research"], reason=" course "))
    assert (made.pool, made.nodes, made.machines) == ("h100", ["a", "b"], 2)
    assert (made.start, made.end) == (rules.moment(at(1), ""), rules.moment(at(3), ""))
    assert (made.workspaces, made.reason, made.state) == (["research"], "course", State.UPCOMING)
    assert (made.created_by, shown(world_on_both, made.id).reservation) == ("admin", made)


def test_machines_and_a_pool_together_are_the_union(world_on_both: World) -> None:
    for name, pool in (("a", "h100"), ("b", "h100"), ("c", "a100"), ("d", "")):
        world_on_both.add_machine(name, pool=pool)
    made = make(world_on_both, asked(1, 2, ["a", "d"], "h100"))
    assert shown(world_on_both, made.id).effect.machines == ["a", "b", "d"]
    assert made.machines == 3


def test_a_pool_covers_machines_that_come_later_and_not_those_that_went(world_on_both: World) -> None:
    world_on_both.add_machine("a", pool="h100")
    made = make(world_on_both, asked(1, 2, pool="h100"))
    world_on_both.add_machine("b", pool="h100")
    relabel(world_on_both, "a", "")
    assert shown(world_on_both, made.id).effect.machines == ["b"]


def test_a_pool_that_no_machine_carries_can_be_reserved(world_on_both: World) -> None:
    made = make(world_on_both, asked(1, 2, pool="h100"))
    assert (made.machines, shown(world_on_both, made.id).effect.machines) == (0, [])


def test_an_unknown_workspace_or_machine_is_named(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    world_on_both.add_machine("theirs", org="rival")
    for given, code in (
        (asked(1, 2, ["a"], workspaces=["absent"]), "WORKSPACE_NOT_FOUND"),
        (asked(1, 2, ["a"], workspaces=["\x00"]), "WORKSPACE_NOT_FOUND"),
        (asked(1, 2, ["a", "absent"]), "NODE_NOT_FOUND"),
        (asked(1, 2, ["theirs"]), "NODE_NOT_FOUND"),
        (asked(1, 2, ["\ud800"]), "NODE_NOT_FOUND"),
    ):
        assert refused(world_on_both, given).code == code
    with world_on_both.act("admin", "acme", "private") as ctx:
        workspaces.remove(ctx)
    assert refused(world_on_both, asked(1, 2, ["a"], workspaces=["private"])).code == "WORKSPACE_NOT_FOUND"
    assert listed(world_on_both) == []


def test_a_removed_machine_is_unknown(world_on_both: World) -> None:
    world_on_both.add_machine("a", pool="h100")
    made = make(world_on_both, asked(1, 2, ["a"]))
    by_pool = make(world_on_both, asked(2, 3, pool="h100"))
    with world_on_both.db.write() as tx:
        tx.run(update(machines).values(removed_at=tx.now))
    assert shown(world_on_both, by_pool.id).effect.machines == []
    assert refused(world_on_both, asked(4, 5, ["a"])).code == "NODE_NOT_FOUND"
    assert (shown(world_on_both, made.id).reservation.nodes, made.machines) == ([], 1)
    assert shown(world_on_both, made.id).reservation.machines == 0


def test_only_so_many_reservations_are_live_in_a_cluster(world_on_both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_LIVE", 2)
    world_on_both.add_machine("a")
    made = [make(world_on_both, asked(hour, hour + 1, ["a"])) for hour in (1, 2)]
    assert refused(world_on_both, asked(3, 4, ["a"])).code == "CONFLICT"
    remove(world_on_both, made[0].id)
    make(world_on_both, asked(3, 4, ["a"]))


# --- conflicts


def test_two_windows_of_one_machine_conflict_and_the_other_is_named(world_on_both: World) -> None:
    for name in ("a", "b", "c"):
        world_on_both.add_machine(name)
    other = make(world_on_both, asked(1, 3, ["a", "b"], workspaces=["research"], reason="course"))
    refusal = refused(world_on_both, asked(2, 4, ["b", "c"]))
    assert refusal.code == "RESERVATION_CONFLICT"
    assert all(word in refusal.message for word in (other.id, "b for research", "course", at(1), at(3)))
    assert refusal.details["reservations"] == [
        {
            "id": other.id,
            "start": at(1),
            "end": at(3),
            "workspaces": ["research"],
            "reason": "course",
            "pool": None,
            "machines": ["b"],
        }
    ]
    assert listed(world_on_both) == [other.id]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 4)])
def test_windows_that_only_touch_do_not_conflict(world_on_both: World, start: int, end: int) -> None:
    world_on_both.add_machine("a")
    make(world_on_both, asked(1, 3, ["a"]))
    make(world_on_both, asked(start, end, ["a"]))


def test_machines_conflict_with_a_pool_that_they_carry_now(world_on_both: World) -> None:
    world_on_both.add_machine("a", pool="h100")
    world_on_both.add_machine("b", pool="a100")
    make(world_on_both, asked(1, 3, pool="h100"))
    assert refused(world_on_both, asked(2, 4, ["a"])).code == "RESERVATION_CONFLICT"
    make(world_on_both, asked(2, 4, ["b"]))
    assert refused(world_on_both, asked(2, 3, pool="a100")).code == "RESERVATION_CONFLICT"


def test_two_of_one_pool_conflict_though_no_machine_carries_it(world_on_both: World) -> None:
    other = make(world_on_both, asked(1, 3, pool="h100"))
    refusal = refused(world_on_both, asked(2, 4, pool="h100"))
    assert refusal.code == "RESERVATION_CONFLICT"
    assert "has pool h100" in refusal.message and other.id in refusal.message
    make(world_on_both, asked(2, 4, pool="a100"))


def test_what_is_over_or_removed_or_anothers_stands_against_nothing(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a", pool="h100")
    world_on_both.add_machine("theirs", "rival", pool="h100")
    with world_on_both.act("rival", "rival") as ctx:
        reservations.create(ctx, "default", asked(0, 9, ["theirs"], "h100"))
    with world_on_both.act("operator", "acme") as ctx:
        clusters.create_dedicated(ctx, "own", "Own")
    make(world_on_both, asked(0, 9, pool="h100"), "own")
    remove(world_on_both, make(world_on_both, asked(0, 9, ["a"])).id)
    make(world_on_both, asked(0, 1, ["a"]))
    clock.forward(3600)
    make(world_on_both, asked(0.5, 9, ["a"]))


def test_relabelling_into_an_overlap_has_both_apply(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    by_pool = make(world_on_both, asked(1, 3, pool="h100", workspaces=["research"]))
    by_name = make(world_on_both, asked(2, 4, ["a"], workspaces=["private"]))
    relabel(world_on_both, "a", "h100")
    assert shown(world_on_both, by_pool.id).effect.machines == shown(world_on_both, by_name.id).effect.machines == ["a"]
    with world_on_both.act("admin", "acme") as ctx:
        windows = machine_acts.one(ctx, "default", "a").windows
    assert [window.id for window in windows] == [by_pool.id, by_name.id]


# --- what it means


def test_a_preview_says_who_and_what_and_changes_nothing(world_on_both: World) -> None:
    for name, pool in (("a", "h100"), ("b", "h100"), ("c", "")):
        world_on_both.add_machine(name, pool=pool)
    world_on_both.add_workload("dev", "a", gpu_count=1)
    grant(world_on_both, "acme/private", "h100")
    other = make(world_on_both, asked(1, 3, ["b"]))
    told = preview(world_on_both, asked(2, 4, pool="h100"))
    assert told.effect.machines == ["a", "b"]
    assert [(work.machine, work.workspace, work.name) for work in told.effect.goes_on] == [("a", "research", "dev")]
    assert told.effect.kept_out == ["private", "research"]
    assert [(one.id, one.machines) for one in told.conflicts] == [(other.id, ["b"])]
    assert listed(world_on_both) == [other.id]
    assert preview(world_on_both, asked(3, 4, ["c"], workspaces=["research"])).effect.kept_out == []
    with pytest.raises(Refusal, match="absent"):
        preview(world_on_both, asked(2, 4, ["absent"]))


def test_work_that_does_not_end_in_time_is_named_and_goes_on(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    for name in ("endless", "late", "soon"):
        world_on_both.add_workload(name, "a")
    limit(world_on_both, "late", 2.0)  # over at the start, but its stop grace is not
    limit(world_on_both, "soon", 2 - 10 / 3600)
    made = make(world_on_both, asked(2, 3, ["a"]))
    assert [work.name for work in shown(world_on_both, made.id).effect.goes_on] == ["endless", "late"]
    clock.forward(2 * 3600)
    assert [work.name for work in shown(world_on_both, made.id).effect.goes_on] == ["endless", "late", "soon"]
    with world_on_both.db.read() as tx:
        assert tx.all(select(allocations).where(allocations.c.stop_asked_at.is_not(None))) == []
    clock.forward(3600)
    assert shown(world_on_both, made.id).effect.goes_on == []


def test_work_of_those_it_is_for_is_not_named(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    world_on_both.add_workload("dev", "a")
    made = make(world_on_both, asked(2, 3, ["a"], workspaces=["research"]))
    assert shown(world_on_both, made.id).effect.goes_on == []


def test_a_member_sees_reservations_but_only_machines_and_work_of_their_workspaces(world_on_both: World) -> None:
    for name in ("a", "b"):
        world_on_both.add_machine(name, pool="h100")
    world_on_both.add_workload("dev", "a")
    made = make(world_on_both, asked(1, 2, ["b"], "h100", workspaces=["private"]))
    mine = shown(world_on_both, made.id, "member")
    assert (mine.reservation.nodes, mine.reservation.workspaces, mine.effect.machines) == (
        ["b"],
        ["private"],
        ["a", "b"],
    )
    assert [work.name for work in mine.effect.goes_on] == ["dev"]
    assert mine.effect.kept_out == ["research"]
    theirs = shown(world_on_both, made.id, "outsider")
    assert (theirs.reservation.nodes, theirs.effect.machines, theirs.effect.machines_left_out) == ([], [], 2)
    assert (theirs.effect.goes_on, theirs.effect.goes_on_left_out, theirs.effect.kept_out) == ([], 1, [])
    assert listed(world_on_both, who="outsider") == [made.id]
    assert listed(world_on_both, Wanted(machine="a"), "member") == [made.id]
    with pytest.raises(Refusal) as refusal:
        listed(world_on_both, Wanted(machine="a"), "outsider")
    assert refusal.value.code == "NODE_NOT_FOUND"


def test_a_workspace_that_was_removed_is_nobody_and_another_of_its_name_is_kept_out(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(1, 2, ["a"], workspaces=["private"]))
    with world_on_both.act("admin", "acme", "private") as ctx:
        workspaces.remove(ctx)
    with world_on_both.act("admin", "acme") as ctx:
        workspaces.create(ctx, "private", "Another")
        windows = machine_acts.one(ctx, "default", "a").windows
    assert shown(world_on_both, made.id).reservation.workspaces == []
    assert [(window.whom, window.workspaces) for window in windows] == [("nobody", frozenset())]


# --- listed


def test_reservations_are_listed_by_state_pool_and_machine(world_on_both: World, clock: Clock) -> None:
    for name, pool in (("a", "h100"), ("b", "h100"), ("c", "")):
        world_on_both.add_machine(name, pool=pool)
    over = make(world_on_both, asked(0, 1, ["c"])).id
    active = make(world_on_both, asked(0, 3, pool="h100")).id
    upcoming = make(world_on_both, asked(4, 5, ["a", "c"])).id
    clock.forward(3600)
    for want, ids in (
        (Wanted(), [active, upcoming]),
        (Wanted(State.PAST), [over]),
        (Wanted(State.ACTIVE), [active]),
        (Wanted(State.UPCOMING), [upcoming]),
        (Wanted(pool="h100"), [active, upcoming]),
        (Wanted(pool="a100"), []),
        (Wanted(machine="a"), [active, upcoming]),
        (Wanted(machine="b"), [active]),
        (Wanted(machine="c"), [upcoming]),
        (Wanted(State.PAST, machine="c"), [over]),
    ):
        assert listed(world_on_both, want) == ids


@pytest.mark.parametrize("state", [None, State.PAST])
def test_pages_have_each_reservation_once(world_on_both: World, clock: Clock, state: State | None) -> None:
    world_on_both.add_machine("a")
    world_on_both.add_machine("b")
    made = [make(world_on_both, asked(hour, hour + 1, [name])) for hour in (1, 2) for name in ("a", "b")]
    expected = [one.id for one in sorted(made, key=lambda one: (one.start, one.id), reverse=state is State.PAST)]
    clock.forward(9 * 3600 if state is State.PAST else 0)
    found: list[str] = []
    after = None
    while True:
        with world_on_both.act("admin", "acme") as ctx:
            page = reservations.listed(ctx, "default", Wanted(state), after, 1)
        if not page:
            break
        found.append(page[0].id)
        after = page[0].start, page[0].id
    assert found == expected


# --- removed


def test_a_removed_reservation_is_found_nowhere_but_in_the_journal(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(1, 2, ["a"], reason="fans"))
    assert remove(world_on_both, made.id).effect.kept_out == ["research"]
    assert listed(world_on_both) == []
    for act in (shown, remove):
        with pytest.raises(Refusal) as refusal:
            act(world_on_both, made.id)
        assert refusal.value.code == "NOT_FOUND"
    after = {"pool": None, "nodes": ["a"], "start": at(1), "end": at(2), "workspaces": [], "reason": "fans"}
    for view in ("audit", "event"):
        assert entries(world_on_both, view) == [
            ("cluster.reservation.created", {"reservation": made.id, "before": None, "after": after}),
            ("cluster.reservation.removed", {"reservation": made.id, "before": after, "after": None}),
        ]


def test_one_that_is_over_is_not_removed(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(0, 1, ["a"]))
    clock.forward(3600)
    with pytest.raises(Refusal) as refusal:
        remove(world_on_both, made.id)
    assert refusal.value.code == "CONFLICT"
    assert listed(world_on_both, Wanted(State.PAST)) == [made.id]


def test_a_dry_run_of_a_removal_changes_nothing(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(1, 2, ["a"]))
    with world_on_both.act("admin", "acme") as ctx:
        assert reservations.remove(ctx, "default", made.id, dry_run=True).effect.kept_out == ["research"]
    assert listed(world_on_both) == [made.id]


def test_another_organisations_reservation_is_absent(world_on_both: World) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(1, 2, ["a"]))
    with world_on_both.act("rival", "rival") as ctx:
        assert reservations.listed(ctx, "default", Wanted(), None, 9) == []
        for act in (reservations.one, reservations.remove):
            with pytest.raises(Refusal) as refusal:
                act(ctx, "default", made.id)
            assert refusal.value.code == "NOT_FOUND"


def test_making_and_removing_have_placement_look_at_the_machines_again(world_on_both: World) -> None:
    for name, pool in (("a", "h100"), ("b", ""), ("c", "")):
        world_on_both.add_machine(name, pool=pool)
    made = make(world_on_both, asked(1, 2, ["b"], "h100"))
    assert touched(world_on_both) == {"a", "b"}
    world_on_both.add_machine("d", pool="h100")
    assert touched(world_on_both) == {"d"}
    remove(world_on_both, made.id)
    assert touched(world_on_both) == {"a", "b", "d"}


# --- isolation in the rows themselves


def test_rows_are_found_and_changed_in_their_own_organisation_only(world_on_both: World, clock: Clock) -> None:
    world_on_both.add_machine("a")
    made = make(world_on_both, asked(0, 1, ["a"], workspaces=["research"]))
    cluster_id = world_on_both.ids.clusters["default"]
    clock.forward(3600)

    def found(tx: Tx, scope: Scope) -> list[bool]:
        return [
            rows.get(tx, scope, cluster_id, made.id) is not None,
            bool(rows.workspaces_of(tx, scope, [made.id])),
            bool(rows.named(tx, scope, [made.id])),
            rows.begin(tx, scope, made.id),
            rows.end(tx, scope, made.id),
        ]

    with world_on_both.db.write() as tx:
        rows.remove(tx, Scope(world_on_both.ids.orgs["rival"]), made.id)
        assert found(tx, Scope(world_on_both.ids.orgs["rival"])) == [False] * 5
        assert found(tx, Scope(world_on_both.ids.orgs["acme"])) == [True] * 5
