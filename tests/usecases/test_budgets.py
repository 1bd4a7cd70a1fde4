"""Budgets: set, seen with what was spent, and each threshold told once a month (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from corral.controllers.budgets import Budgets
from corral.domain.budgets import Budget
from corral.domain.errors import Refusal
from corral.domain.prices import PriceTable
from corral.store.tables.journal import journal
from corral.store.transaction import Scope
from corral.usecases import budgets, workspaces
from corral.usecases.budgets import Standing
from tests.conftest import Clock
from tests.metered import Held, hold, price
from tests.world import World

START = datetime(2026, 3, 10, tzinfo=timezone.utc)
HOUR_S = 3600
TEN = Budget(10_000_000, "EUR", (50, 80, 100))
A_GPU = PriceTable("EUR", {"*": 1_000_000})


@pytest.fixture
def world(world_on_both: World, clock: Clock) -> World:
    """From `START` on a GPU runs in `research`, at 1 EUR an hour."""
    clock.now = START
    price(world_on_both, START - timedelta(days=60), A_GPU)
    hold(world_on_both, "dev", Held(START, None, 1, "H100", 0, 0, 0))
    return world_on_both


def put(world: World, budget: Budget = TEN, workspace: str = "research") -> Standing:
    with world.act("admin", "acme", workspace) as ctx:
        return budgets.put(ctx, budget)


def remove(world: World) -> None:
    with world.act("admin", "acme", "research") as ctx:
        budgets.remove(ctx)


def listed(world: World, who: str = "admin", org: str = "acme") -> list[Standing]:
    with world.act(who, org=org) as ctx:
        return list(budgets.listed(ctx, None, 99))


def look(world: World) -> None:
    """As a control plane does that has just started."""
    Budgets(world.db).pass_once()


def told(world: World, type: str = "workspace.budget.reached") -> list[Any]:
    with world.db.read() as tx:
        mine = select(journal).where(journal.c.type == type).order_by(journal.c.seq)
        return [row["data"] for row in tx.all(mine)]


def percents(world: World) -> list[tuple[str, int]]:
    return [(data["month"], data["percent"]) for data in told(world)]


def test_a_threshold_is_told_when_it_is_reached_and_not_again(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(5 * HOUR_S - 1)
    look(world)
    assert told(world) == []
    clock.forward(1)
    for _ in range(3):
        look(world)
    assert told(world) == [
        {
            "workspace": "research",
            "percent": 50,
            "spent": "5.00",
            "amount": "10.00",
            "currency": "EUR",
            "month": "2026-03",
        }
    ]
    clock.forward(3 * HOUR_S)
    look(world)
    assert percents(world) == [("2026-03", 50), ("2026-03", 80)]


def test_what_was_reached_while_nobody_looked_is_told_at_the_next_look(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(100 * HOUR_S)
    look(world)
    assert percents(world) == [("2026-03", 50), ("2026-03", 80), ("2026-03", 100)]


def test_a_lowered_budget_tells_what_it_now_reached(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(5 * HOUR_S)
    look(world)
    put(world, Budget(5_000_000, "EUR", TEN.thresholds))
    look(world)
    put(world)
    look(world)
    assert percents(world) == [("2026-03", 50), ("2026-03", 80), ("2026-03", 100)]


def test_another_threshold_is_told_too(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(6 * HOUR_S)
    look(world)
    put(world, Budget(TEN.amount, "EUR", (60, 90)))
    look(world)
    assert percents(world) == [("2026-03", 50), ("2026-03", 60)]


def test_a_budget_that_was_removed_and_set_again_does_not_repeat_itself(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(5 * HOUR_S)
    look(world)
    remove(world)
    look(world)
    put(world)
    look(world)
    assert percents(world) == [("2026-03", 50)]


def test_a_new_month_begins_anew(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(20 * HOUR_S)
    look(world)
    clock.now = datetime(2026, 4, 1, 5, tzinfo=timezone.utc)
    assert listed(world)[0].percent == 50
    look(world)
    assert percents(world)[3:] == [("2026-04", 50)]


def test_what_a_month_reached_in_its_last_minute_is_told_after_it(world: World, clock: Clock) -> None:
    clock.now = datetime(2026, 3, 31, 23, tzinfo=timezone.utc)
    put(world, Budget(int(22 * 24 * 1e6), "EUR", (100,)))  # from March 10th to its end, 22 days
    look(world)
    assert percents(world) == []
    clock.forward(2 * HOUR_S)
    look(world)
    assert percents(world) == [("2026-03", 100)]
    assert told(world)[0]["spent"] == "528.00"


def test_a_budget_set_after_a_month_was_over_says_nothing_of_it(world: World, clock: Clock) -> None:
    clock.now = datetime(2026, 4, 1, 0, 30, tzinfo=timezone.utc)
    put(world)
    look(world)
    assert percents(world) == []


def test_a_budget_that_changed_since_it_was_judged_is_judged_anew(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(5 * HOUR_S)
    scope = Scope(world.ids.orgs["acme"])
    with world.db.read() as tx:
        reached = budgets.judge(tx, scope)
    clock.forward(1)
    put(world, Budget(900_000_000, "EUR", (50,)))
    with world.db.write() as tx:
        budgets.tell(tx, scope, reached)
    assert told(world) == []


def test_two_who_look_at_once_tell_once(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(5 * HOUR_S)
    scope = Scope(world.ids.orgs["acme"])
    with world.db.read() as tx:
        reached = budgets.judge(tx, scope)
    for _ in range(2):
        with world.db.write() as tx:
            budgets.tell(tx, scope, reached)
    assert percents(world) == [("2026-03", 50)]


def test_one_organisation_that_cannot_be_judged_keeps_no_other_from_it(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.act("rival", "rival", "research") as ctx:
        budgets.put(ctx, TEN)
    put(world)
    clock.forward(5 * HOUR_S)
    judge = budgets.judge

    def judging(tx: Any, scope: Any) -> Any:
        if scope.org == world.ids.orgs["rival"]:
            raise ValueError("broken")
        return judge(tx, scope)

    monkeypatch.setattr(budgets, "judge", judging)
    look(world)
    assert percents(world) == [("2026-03", 50)]


# -- as people see it


def test_a_budget_is_seen_with_what_was_spent_and_what_the_month_comes_to(world: World, clock: Clock) -> None:
    put(world, Budget(1000_000_000, "EUR", (50,)))
    clock.forward(24 * HOUR_S)
    standing = listed(world)[0]
    assert (standing.workspace, standing.month) == ("research", "2026-03")
    assert (standing.spent, standing.percent) == (24_000_000, 2)
    assert standing.forecast == 22 * 24 * 1_000_000
    hold(world, "over", Held(START, START + timedelta(hours=1), 1, "H100", 0, 0, 0))
    assert listed(world)[0].forecast == (22 * 24 + 1) * 1_000_000


def test_costs_in_another_currency_do_not_count_and_are_said(world: World, clock: Clock) -> None:
    put(world)
    clock.forward(2 * HOUR_S)
    price(world, clock.now, PriceTable("USD", {"A100": 7_000_000}))
    hold(world, "other", Held(clock.now, None, 1, "A100", 0, 0, 0))
    clock.forward(HOUR_S)
    standing = listed(world)[0]
    assert (standing.spent, standing.elsewhere) == (2_000_000, {"USD": 7_000_000})
    assert standing.unpriced_gpu_seconds == HOUR_S


def test_each_workspace_has_its_own_and_each_organisation_sees_its_own(world: World, clock: Clock) -> None:
    put(world)
    put(world, TEN, "private")
    clock.forward(2 * HOUR_S)
    assert [(one.workspace, one.spent) for one in listed(world)] == [("private", 0), ("research", 2_000_000)]
    assert listed(world, "rival", "rival") == []


def test_the_same_budget_again_changes_nothing(world: World, clock: Clock) -> None:
    first = put(world)
    clock.forward(1)
    assert put(world).changed_at == first.changed_at
    put(world, Budget(1, "USD", (1,)))
    remove(world)
    shown = {"amount": "10.00", "currency": "EUR", "thresholds": [50, 80, 100]}
    other = {"amount": "0.000001", "currency": "USD", "thresholds": [1]}
    assert told(world, "workspace.budget") == [
        {"before": None, "after": shown},
        {"before": shown, "after": other},
        {"before": other, "after": None},
    ]


def test_a_budget_that_is_not_there_cannot_be_removed(world: World) -> None:
    with pytest.raises(Refusal) as refusal:
        remove(world)
    assert refusal.value.code == "NOT_FOUND"


def test_a_removed_workspace_has_no_budget_any_more(world: World, clock: Clock) -> None:
    put(world, TEN, "private")
    with world.act("admin", "acme", "private") as ctx:
        workspaces.remove(ctx)
    assert listed(world) == []
    look(world)


def test_nothing_is_written_where_nothing_was_reached(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(world)
    clock.forward(5 * HOUR_S)
    look(world)

    def write(*_: object) -> object:
        raise AssertionError("it wrote")

    monkeypatch.setattr(budgets, "tell", write)
    monkeypatch.setattr(world.db, "write", write)
    with capture_logs() as logs:
        look(world)
    assert logs == []
