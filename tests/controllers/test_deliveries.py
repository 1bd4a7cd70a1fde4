"""The outbox is emptied: at least once, under one id, each target at its own pace."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from anyio import to_thread
from sqlalchemy import select, update

from corral.controllers.deliveries import TOGETHER, Deliveries, Job
from corral.domain.ids import uuid7
from corral.domain.turns import AT_ONCE, OF_A_TARGET, OF_AN_ORG, SERVICES_OF_AN_ORG
from corral.domain.webhooks import FAILING_FOR, Outcome
from corral.store import deliveries as rows
from corral.store.engine import Database
from corral.store.tables.alerts import alert_rules, deliveries, webhooks
from corral.store.tables.journal import journal
from corral.store.transaction import Row, Scope, Tx
from corral.usecases import alert_rules as rules
from corral.usecases import deliveries as use
from corral.usecases import webhooks as hooks
from tests.conftest import Clock
from tests.live_server import DEADLINE_S
from tests.usecases.test_telling import SEAL, add_rule, add_webhook, all_due
from tests.world import World

TAKEN, FAILED = Outcome(200), Outcome(503, error="It answered 503.")


@dataclass
class Outside:
    """A sender that answers as a test says; what it `holds` stays on its way until let go."""

    answer: Callable[[Job], Outcome] = lambda _: TAKEN
    holds: set[str] = field(default_factory=set)
    """Targets."""
    begun: list[Job] = field(default_factory=list)
    sent: list[Job] = field(default_factory=list)

    async def send(self, job: Job) -> Outcome:
        self.begun.append(job)
        while job.target in self.holds:
            await asyncio.sleep(0.01)
        self.sent.append(job)
        return self.answer(job)

    async def aclose(self) -> None:
        self.holds.clear()


@asynccontextmanager
async def emptying(db: Database, outside: Outside) -> AsyncIterator[Deliveries]:
    made = Deliveries(db, outside, poll_every_s=0.01, chance=lambda: 0.5)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def eventually(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not check():
            await asyncio.sleep(0.01)


def put(world: World, target: str, count: int = 1, org: str = "acme", *, rule: bool = False) -> list[str]:
    """Put deliveries out; returns their ids, in the order in which they are due."""
    with world.db.write() as tx:
        ids = [uuid7(tx.now, number.to_bytes(2, "big") + os.urandom(8)) for number in range(count)]
        to = {"webhook_id": None if rule else target, "rule_id": target if rule else None, "target_id": target}
        given = {**to, "org_id": world.ids.orgs[org], "alert_id": None, "event_seq": None, "type": "cluster.node.down"}
        rows.add(tx, [{**given, "id": id, "body": '{"title":"a","text":"b"}'} for id in ids])
    return ids


def all_of(world: World, table: Any = deliveries) -> Sequence[Row]:
    with world.db.read() as tx:
        return tx.all(select(table).order_by(table.c.id))


def done(world: World) -> list[str]:
    return [row["id"] for row in all_of(world) if row["delivered_at"] is not None]


def test_what_is_due_is_sent_and_written_down(world_on_both: World, clock: Clock) -> None:
    hook, outside = add_webhook(world_on_both), Outside()
    ids = put(world_on_both, hook, 3)

    async def run() -> None:
        async with emptying(world_on_both.db, outside):
            await eventually(lambda: len(done(world_on_both)) == 3)

    asyncio.run(run())
    assert sorted(job.dues[0].id for job in outside.sent) == ids
    for row in all_of(world_on_both):
        assert (row["attempts"], row["status"], row["next_at"], row["error"]) == (1, 200, None, "")
    (shown,) = all_of(world_on_both, webhooks)
    assert (shown["last_status"], shown["last_at"], shown["failing_since"]) == (200, clock.now, None)


def test_what_was_sent_but_not_written_down_is_sent_again_under_its_id(
    world_on_both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, outside = add_webhook(world_on_both), Outside()
    (id,) = put(world_on_both, hook)

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    async def run(until: Callable[[], Any]) -> None:
        async with emptying(world_on_both.db, outside):
            await eventually(until)

    with monkeypatch.context() as cut:
        cut.setattr(use, "settle", dies)
        asyncio.run(run(lambda: outside.sent))
    assert not done(world_on_both)
    asyncio.run(run(lambda: done(world_on_both)))
    assert [job.dues[0].id for job in outside.sent] == [id, id]


def test_a_database_that_is_away_sends_nothing_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hook, outside, tried = add_webhook(world), Outside(), []
    put(world, hook)
    settle = use.settle

    def away(*given: Any) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise RuntimeError("away")
        settle(*given)

    monkeypatch.setattr(use, "settle", away)
    monkeypatch.setattr("corral.controllers.deliveries.FAILED_WAIT_S", 0.01)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: done(world))

    asyncio.run(run())
    assert len(outside.sent) == 1 and len(tried) == 3


def test_what_was_not_taken_comes_again_later_and_is_given_up_in_the_end(world_on_both: World, clock: Clock) -> None:
    hook, outside = add_webhook(world_on_both), Outside(lambda _: FAILED)
    put(world_on_both, hook)
    waits = []

    def tried(times: int) -> bool:
        return bool(all_of(world_on_both)[0]["attempts"] == times)

    async def run() -> None:
        async with emptying(world_on_both.db, outside):
            for attempt in range(1, 12):
                await eventually(partial(tried, attempt))
                (row,) = all_of(world_on_both)
                if row["next_at"] is not None:
                    waits.append((row["next_at"] - clock.now).total_seconds())
                    clock.now = row["next_at"]

    asyncio.run(run())
    assert waits == [5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800, 28800]
    (row,) = all_of(world_on_both)
    assert (row["next_at"], row["delivered_at"], row["status"], row["error"]) == (None, None, 503, "It answered 503.")
    assert all_of(world_on_both, webhooks)[0]["failing_since"] is not None


def test_one_that_takes_again_is_failing_no_more(world: World, clock: Clock) -> None:
    hook = add_webhook(world)
    (id,) = put(world, hook)
    with world.db.write() as tx:
        tx.run(update(webhooks).values(failing_since=clock.now - timedelta(days=4)))
        (due,) = all_due(tx)
        use.settle(tx, [use.Result(due, TAKEN)], lambda: 0.5)
    assert all_of(world, webhooks)[0]["failing_since"] is None and done(world) == [id]


def test_a_webhook_that_is_gone_or_has_taken_nothing_for_days_is_disabled(world_on_both: World, clock: Clock) -> None:
    gone, failing, young = (add_webhook(world_on_both) for _ in range(3))
    for hook in (gone, failing, young):
        put(world_on_both, hook, 2)
    with world_on_both.db.write() as tx:
        for hook, since in ((failing, FAILING_FOR), (young, FAILING_FOR - timedelta(seconds=1))):
            tx.run(update(webhooks).where(webhooks.c.id == hook).values(failing_since=clock.now - since))
        dues = {due.target_id: due for due in all_due(tx)}
        outcomes = {gone: Outcome(410), failing: FAILED, young: FAILED}
        use.settle(tx, [use.Result(dues[hook], outcome) for hook, outcome in outcomes.items()], lambda: 0.5)
    enabled = {row["id"]: (row["enabled"], row["disabled_because"]) for row in all_of(world_on_both, webhooks)}
    assert enabled[young] == (True, "")
    assert not enabled[gone][0] and "410" in enabled[gone][1]
    assert not enabled[failing][0] and "5 days" in enabled[failing][1]
    waiting = [row["target_id"] for row in all_of(world_on_both) if row["next_at"] is not None]
    assert waiting == [young, young]
    with world_on_both.db.read() as tx:
        told = tx.all(select(journal).where(journal.c.type == "webhook.disabled"))
    assert sorted(row["data"]["id"] for row in told) == sorted([gone, failing])
    assert all(row["org_id"] == world_on_both.ids.orgs["acme"] and row["actor_kind"] == "site" for row in told)


def test_a_slow_target_holds_up_nobody(world: World) -> None:
    slow, quick = add_webhook(world), add_webhook(world, who="rival", org="rival")
    outside = Outside(holds={slow})
    put(world, slow, 50)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: outside.begun)
            put(world, quick, 20, "rival")
            await eventually(lambda: len(done(world)) == 20)

    asyncio.run(run())
    assert sum(job.target == slow for job in outside.begun) == OF_A_TARGET


def test_what_is_on_its_way_is_not_begun_again(world: World) -> None:
    slow, quick = add_webhook(world), add_webhook(world)
    outside = Outside(holds={slow})
    put(world, slow)

    async def run() -> None:
        async with emptying(world.db, outside):
            for number in range(1, 6):  # each is a turn at least
                put(world, quick)
                await eventually(partial(lambda count: len(done(world)) == count, number))

    asyncio.run(run())
    assert [job.target for job in outside.begun].count(slow) == 1


def test_much_that_waits_for_one_target_hides_nothing_behind_it(world: World) -> None:
    slow, quick = add_webhook(world), add_webhook(world)
    outside = Outside(holds={slow})
    put(world, slow, 40)
    put(world, quick, 3)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: len(done(world)) == 3)

    asyncio.run(run())


def test_an_organisation_with_many_slow_targets_leaves_room_for_others(world: World) -> None:
    slow = [add_webhook(world) for _ in range(10)]
    quick = add_webhook(world, who="rival", org="rival")
    outside = Outside(holds=set(slow))
    for hook in slow:
        put(world, hook, 10)
    put(world, quick, 5, "rival")

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: len(done(world)) == 5)

    asyncio.run(run())
    assert len([job for job in outside.begun if job.target != quick]) == OF_AN_ORG < AT_ONCE


def test_a_target_that_fails_gets_one_at_a_time_after_a_pause(world: World, clock: Clock) -> None:
    hook, outside = add_webhook(world), Outside(lambda _: FAILED)
    put(world, hook, 10)

    async def run() -> None:
        async with emptying(world.db, outside) as made:
            await eventually(lambda: len(outside.sent) == OF_A_TARGET)
            await eventually(lambda: made._paused)
            outside.holds.add(hook)
            clock.forward(3600)
            await eventually(lambda: len(outside.begun) > OF_A_TARGET)
            put(world, hook)
            made.wake()
            await asyncio.to_thread(made._turn, [])
            assert len(outside.begun) == OF_A_TARGET + 1

    asyncio.run(run())


def test_what_waits_together_for_a_service_is_told_in_one(world: World) -> None:
    rule, outside = add_rule(world), Outside()
    put(world, rule, TOGETHER + 1, rule=True)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: len(done(world)) == TOGETHER + 1)

    asyncio.run(run())
    assert [len(job.dues) for job in outside.sent] == [TOGETHER, 1]
    (row,) = all_of(world, alert_rules)
    assert row["last_at"] is not None and row["last_error"] == ""


def test_an_organisation_has_few_services_told_at_once(world: World) -> None:
    slow = [add_rule(world) for _ in range(4)]
    quick = add_rule(world, who="rival", org="rival")
    outside = Outside(holds=set(slow))
    for rule in slow:
        put(world, rule, rule=True)
    put(world, quick, 1, "rival", rule=True)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: done(world))

    asyncio.run(run())
    assert len([job for job in outside.begun if job.target != quick]) == SERVICES_OF_AN_ORG


def test_what_came_to_wait_while_its_target_was_disabled_is_dropped(world_on_both: World) -> None:
    hook, rule, outside = add_webhook(world_on_both), add_rule(world_on_both), Outside()
    with world_on_both.act("admin", org="acme") as ctx:
        hooks.change(ctx, SEAL, hook, hooks.Change(enabled=False))
        rules.remove(ctx, rule)
    put(world_on_both, hook)
    put(world_on_both, rule, rule=True)

    async def run() -> None:
        async with emptying(world_on_both.db, outside):
            await eventually(lambda: all(row["next_at"] is None for row in all_of(world_on_both)))

    asyncio.run(run())
    assert not outside.begun and {row["attempts"] for row in all_of(world_on_both)} == {0}


def test_stopping_does_not_wait_for_a_service_that_does_not_answer(world: World) -> None:
    ended = threading.Event()

    class Stuck(Outside):
        async def send(self, job: Job) -> Outcome:
            self.begun.append(job)
            await to_thread.run_sync(ended.wait, DEADLINE_S)  # a thread, which nothing else can end
            return TAKEN

        async def aclose(self) -> None:
            ended.set()

    put(world, add_rule(world), rule=True)
    outside = Stuck()

    async def run() -> None:
        async with emptying(world.db, outside) as made:
            await eventually(lambda: outside.begun)
            async with asyncio.timeout(DEADLINE_S / 2):
                await made.stop()

    asyncio.run(run())


def test_a_sender_that_breaks_fails_its_own_delivery_only(world: World) -> None:
    bad, good = add_webhook(world), add_webhook(world)

    def answer(job: Job) -> Outcome:
        if job.target == bad:
            raise ValueError("what the target answered")
        return TAKEN

    put(world, bad)
    put(world, good)

    async def run() -> None:
        async with emptying(world.db, Outside(answer)):
            await eventually(lambda: done(world))
            await eventually(lambda: all(row["attempts"] for row in all_of(world)))

    asyncio.run(run())
    (failed,) = [row for row in all_of(world) if row["target_id"] == bad]
    assert "No answer" in failed["error"] and "what the target answered" not in failed["error"]


def test_what_is_removed_or_disabled_is_sent_no_more(world_on_both: World) -> None:
    removed, disabled = add_webhook(world_on_both), add_webhook(world_on_both)
    for hook in (removed, disabled):
        put(world_on_both, hook)
    with world_on_both.act("admin", org="acme") as ctx:
        hooks.remove(ctx, removed)
        hooks.change(ctx, SEAL, disabled, hooks.Change(enabled=False))
    with world_on_both.db.read() as tx:
        assert not all_due(tx)
    assert {row["error"] for row in all_of(world_on_both)} == {"The webhook was removed.", "The webhook was disabled."}


def test_a_result_for_what_was_dropped_meanwhile_changes_nothing(world: World) -> None:
    hook = add_webhook(world)
    put(world, hook)
    with world.db.write() as tx:
        (due,) = all_due(tx)
        rows.drop_waiting(tx, hook, "dropped")
        use.settle(tx, [use.Result(due, FAILED)], lambda: 0.5)
    (row,) = all_of(world)
    assert (row["next_at"], row["error"]) == (None, "dropped")


def test_what_is_done_is_forgotten_after_its_time_and_what_waits_is_not(world_on_both: World, clock: Clock) -> None:
    hook = add_webhook(world_on_both)
    put(world_on_both, hook, 2)
    with world_on_both.db.write() as tx:
        (first, _) = all_due(tx)
        use.settle(tx, [use.Result(first, TAKEN)], lambda: 0.5)
    clock.forward(timedelta(days=30).total_seconds())
    with world_on_both.db.write() as tx:
        assert not use.forget_old(tx)
    assert len(all_of(world_on_both)) == 2
    clock.forward(1)
    with world_on_both.db.write() as tx:
        assert not use.forget_old(tx)
        assert rows.of_webhook(tx, Scope(world_on_both.ids.orgs["rival"]), hook, None, 9) == []
    assert len(all_of(world_on_both)) == 1


def test_organisations_with_slow_targets_do_not_starve_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with hundreds that wait, longer than the other's one: the other's goes at once, or when a place is free."""
    monkeypatch.setattr("corral.domain.turns.AT_ONCE", 2)
    slow, quick = [add_webhook(world) for _ in range(8)], add_webhook(world, who="rival", org="rival")
    outside = Outside(holds=set(slow))
    for hook in slow:
        put(world, hook, 40)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: outside.begun)
            put(world, quick, 3, "rival")
            await eventually(lambda: len(done(world)) == 3)
        assert len([job for job in outside.begun if job.target != quick]) == 1

    asyncio.run(run())


def test_they_take_turns_for_the_one_place_there_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.domain.turns.AT_ONCE", 1)
    much, little = add_webhook(world), add_webhook(world, who="rival", org="rival")
    outside = Outside()
    put(world, much, 20)
    put(world, little, 2, "rival")

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: len(outside.sent) >= 6)

    asyncio.run(run())
    order = [job.target for job in outside.sent[:4]]
    assert order == order[:2] * 2 and set(order) == {much, little}


def test_only_what_begins_is_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    load = use.load

    def counted(tx: Tx, ids: Sequence[str]) -> Any:
        loaded.append(len(ids))
        return load(tx, ids)

    monkeypatch.setattr(use, "load", counted)
    put(world, add_webhook(world), 500)

    async def run() -> None:
        async with emptying(world.db, Outside()):
            await eventually(lambda: len(done(world)) >= 20)

    asyncio.run(run())
    assert max(loaded) <= OF_A_TARGET


def test_results_of_what_ends_soon_after_another_are_written_down_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.controllers.deliveries.GATHER_S", DEADLINE_S)
    written: list[int] = []
    settle = use.settle

    def counted(tx: Tx, results: Sequence[use.Result], chance: Any) -> None:
        written.append(len(results))
        settle(tx, results, chance)

    monkeypatch.setattr(use, "settle", counted)
    first, second = add_webhook(world), add_webhook(world)
    outside = Outside(holds={second})
    put(world, first)
    put(world, second)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: outside.sent)
            outside.holds.clear()
            await eventually(lambda: len(done(world)) == 2)

    asyncio.run(run())
    assert written == [2]


def test_what_is_never_sent_again_keeps_no_body(world_on_both: World, clock: Clock) -> None:
    taken, again, dropped = (add_webhook(world_on_both) for _ in range(3))
    for hook in (taken, again, dropped):
        put(world_on_both, hook)
    with world_on_both.db.write() as tx:
        dues = {due.target_id: due for due in all_due(tx)}
        use.settle(tx, [use.Result(dues[taken], TAKEN), use.Result(dues[again], FAILED)], lambda: 0.5)
        rows.drop_waiting(tx, dropped, "dropped")
    assert {row["target_id"]: bool(row["body"]) for row in all_of(world_on_both)} == {
        taken: False,
        again: True,
        dropped: False,
    }
    with world_on_both.db.write() as tx:
        tx.run(update(deliveries).where(deliveries.c.target_id == again).values(attempts=10, next_at=clock.now))
        (due,) = all_due(tx)
        use.settle(tx, [use.Result(due, FAILED)], lambda: 0.5)
    assert {row["body"] for row in all_of(world_on_both)} == {""}


def test_a_target_that_is_removed_is_remembered_no_more(world: World, clock: Clock) -> None:
    hook, outside = add_webhook(world), Outside(lambda _: FAILED)
    put(world, hook, 2)

    async def run() -> None:
        async with emptying(world.db, outside) as made:
            await eventually(lambda: made._failures[hook] == 2 and made._paused)
            with world.act("admin", org="acme") as ctx:
                hooks.remove(ctx, hook)
            await eventually(lambda: not made._failures and not made._paused and not made._last)

    asyncio.run(run())


def test_what_is_done_is_forgotten_a_batch_at_a_time(
    world_on_both: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use, "FORGOTTEN_AT_ONCE", 2)
    put(world_on_both, add_webhook(world_on_both), 5)
    with world_on_both.db.write() as tx:
        use.settle(tx, [use.Result(due, TAKEN) for due in all_due(tx)], lambda: 0.5)
    clock.forward(timedelta(days=30).total_seconds() + 1)
    left = []
    for more in (True, True, False):
        with world_on_both.db.write() as tx:
            assert use.forget_old(tx) is more
        left.append(len(all_of(world_on_both)))
    assert left == [3, 1, 0]


def test_what_a_target_refuses_holds_up_nothing_else(world: World) -> None:
    hook = add_webhook(world)
    put(world, hook, 30)
    refused: set[str] = set()

    def answer(job: Job) -> Outcome:
        """Refuse every second one, whenever it comes."""
        (due,) = job.dues
        if len(refused) * 2 <= len(outside.sent):
            refused.add(due.id)
        return Outcome(500, error="refused") if due.id in refused else TAKEN

    outside = Outside(answer)

    async def run() -> None:
        async with emptying(world.db, outside):
            await eventually(lambda: len(outside.sent) >= 30)

    asyncio.run(run())
    assert len({job.dues[0].id for job in outside.sent}) == 30
    assert len(refused) >= 10
