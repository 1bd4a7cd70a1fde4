"""From the journal to alerts and the outbox: each entry counts once, each tenant for itself, on both databases."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from corral.controllers.alerts import AlertFollower
from corral.domain import webhooks as webhook_rules
from corral.domain.alert_targets import target
from corral.domain.events import Entry, Subject
from corral.domain.webhooks import Outcome
from corral.store.tables.alerts import alerts, deliveries, webhooks
from corral.store.tables.journal import journal
from corral.store.tables.site import sites
from corral.store.transaction import SITE, Row, Tx
from corral.usecases import alert_rules, site, telling
from corral.usecases import deliveries as sending
from corral.usecases import webhooks as hooks
from corral.usecases.alert_rules import Asked, Told
from tests.conftest import Clock
from tests.usecases.test_faults import clear
from tests.usecases.test_gpu_evidence import Host, gpu, swap, xid
from tests.world import World

URL = "https://hooks.example.com/x"
ROUNDS = 25


class Plain:
    """A seal that hides nothing, for tests that are not about it."""

    def seal(self, text: str, of: str) -> bytes:
        return f"{of}:{text}".encode()

    def open(self, sealed: bytes, of: str) -> str | None:
        start, _, text = sealed.decode().partition(":")
        return text if start == of else None


SEAL = Plain()


@pytest.fixture
def told(world_on_both: World) -> AlertFollower:
    """A follower that stands at the journal's end; `world_on_both` has a machine `gpu-1` of acme and one of rival."""
    world_on_both.add_machine("gpu-1")
    world_on_both.add_machine("gpu-9", org="rival")
    follower = AlertFollower(world_on_both.db, lambda: "https://corral.test", lambda: None)
    follower.pass_once()
    return follower


def subject(world: World, machine: str = "gpu-1", org: str = "acme") -> Subject:
    return Subject(org=world.ids.orgs[org], cluster=world.ids.clusters["default"], machine=world.ids.machines[machine])


def record(world: World, type: str, machine: str = "gpu-1", org: str = "acme", **data: Any) -> None:
    with world.db.write() as tx:
        tx.record(Entry(type, subject(world, machine, org), {"name": machine, **data}), SITE)


def rows(world: World, table: Any, *where: Any) -> Sequence[Row]:
    with world.db.read() as tx:
        return tx.all(select(table).where(*where).order_by(table.c.id))


def all_due(tx: Tx) -> list[sending.Due]:
    """All that is due, of targets that may be told."""
    targets = [head.target_id for head in sending.heads(tx) if head.able]
    return list(sending.load(tx, [id for target in targets for id in sending.due_ids(tx, target, 99)]).values())


def add_webhook(world: World, *types: str, who: str = "admin", org: str = "acme") -> str:
    with world.act(who, org=org) as ctx:
        return str(hooks.create(ctx, SEAL, hooks.Asked("hook", URL, types)).row["id"])


def add_rule(world: World, *kinds: str, who: str = "admin", org: str = "acme", **asked: Any) -> str:
    told = asked.pop("told", None) or Told(target=target("slack://aaaa/bbbb/cccc"))
    with world.act(who, org=org) as ctx:
        return str(alert_rules.create(ctx, SEAL, Asked("rule", list(kinds), told=told, **asked))["id"])


def kinds_told(world: World) -> list[str]:
    return [row["type"] for row in rows(world, deliveries)]


def test_a_machine_that_goes_down_opens_one_alert_and_its_rule_is_told(
    world_on_both: World, told: AlertFollower
) -> None:
    rule = add_rule(world_on_both)
    record(world_on_both, "cluster.node.down")
    told.pass_once()
    (alert,) = rows(world_on_both, alerts)
    assert (alert["kind"], alert["count"], alert["title"]) == ("machine_down", 1, "Machine gpu-1 is down")
    assert alert["machine_id"] == world_on_both.ids.machines["gpu-1"] and alert["closed_at"] is None
    (delivery,) = rows(world_on_both, deliveries)
    assert (delivery["rule_id"], delivery["alert_id"], delivery["type"]) == (rule, alert["id"], "alert.opened")
    message = json.loads(delivery["body"])
    assert message["title"] == "Machine gpu-1 is down"
    assert "Organisation acme at https://corral.test" in message["text"]


def test_each_entry_counts_once_whatever_dies_in_between(
    world_on_both: World, told: AlertFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rule(world_on_both)
    record(world_on_both, "cluster.node.down")

    def dies(*_: Any) -> bool:
        raise RuntimeError("power cut")

    with monkeypatch.context() as cut:
        cut.setattr("corral.usecases.telling.site.advance_notified", dies)
        with pytest.raises(RuntimeError):
            told.pass_once()
    assert not rows(world_on_both, alerts) and not rows(world_on_both, deliveries)
    for _ in range(3):
        another = AlertFollower(world_on_both.db, lambda: "", lambda: None)
        another.pass_once()
        another.pass_once()
    assert len(rows(world_on_both, alerts)) == len(rows(world_on_both, deliveries)) == 1


def test_two_followers_at_once_make_it_once(world_on_both: World, told: AlertFollower) -> None:
    add_rule(world_on_both)
    record(world_on_both, "cluster.node.down")
    other = AlertFollower(world_on_both.db, lambda: "", lambda: None)
    told.pass_once()
    with world_on_both.db.read() as tx:
        entries = [{**row} for row in tx.all(select(journal).order_by(journal.c.seq))]
    with pytest.raises(telling.Overtaken), world_on_both.db.write() as tx:
        telling.take_in(tx, entries, telling.Place(0, entries[-1]["seq"]), "")
    other.pass_once()
    assert len(rows(world_on_both, deliveries)) == 1


def test_a_first_start_does_not_tell_old_history(world_on_both: World) -> None:
    world_on_both.add_machine("gpu-1")
    add_rule(world_on_both)
    record(world_on_both, "cluster.node.down")
    follower = AlertFollower(world_on_both.db, lambda: "", lambda: None)
    follower.pass_once()
    assert not rows(world_on_both, alerts)
    record(world_on_both, "cluster.node.up")
    record(world_on_both, "cluster.node.down")
    # And one that starts later goes on where that one was.
    AlertFollower(world_on_both.db, lambda: "", lambda: None).pass_once()
    assert len(rows(world_on_both, alerts)) == 1


def test_behind_the_end_of_a_restored_journal_it_goes_on_with_what_comes(world_on_both: World) -> None:
    world_on_both.add_machine("gpu-1")
    with world_on_both.db.write() as tx:
        tx.run(update(sites).values(notified_seq=10_000))
    follower = AlertFollower(world_on_both.db, lambda: "", lambda: None)
    follower.pass_once()
    record(world_on_both, "cluster.node.down")
    follower.pass_once()
    assert len(rows(world_on_both, alerts)) == 1
    assert _place(world_on_both) < 10_000


def test_entries_that_nobody_is_told_of_cost_no_write(
    world_on_both: World, told: AlertFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.controllers.alerts.KEEP_EVERY", 20)
    before = _place(world_on_both)
    for _ in range(19):
        record(world_on_both, "cluster.node.inventory")
    told.pass_once()
    assert _place(world_on_both) == before
    record(world_on_both, "cluster.node.inventory")
    told.pass_once()
    assert _place(world_on_both) == before + 20


def test_a_long_journal_is_read_in_parts(
    world_on_both: World, told: AlertFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.controllers.alerts.BATCH", 2)
    for _ in range(3):
        record(world_on_both, "cluster.node.condition")
    record(world_on_both, "cluster.node.down")
    assert told.pass_once()
    assert not rows(world_on_both, alerts)
    assert told.pass_once()
    assert len(rows(world_on_both, alerts)) == 1
    assert not told.pass_once()


def _place(world: World) -> int:
    with world.db.read() as tx:
        return int(tx.scalar(select(sites.c.notified_seq)))


def test_a_flapping_machine_makes_one_alert_and_two_messages(
    world_on_both: World, told: AlertFollower, clock: Clock
) -> None:
    add_rule(world_on_both)
    for _ in range(5):
        record(world_on_both, "cluster.node.down")
        told.pass_once()
        clock.forward(30)
        record(world_on_both, "cluster.node.up")
        told.pass_once()
        clock.forward(30)
    (alert,) = rows(world_on_both, alerts)
    assert alert["count"] == 5 and alert["closed_at"] is not None
    assert kinds_told(world_on_both) == ["alert.opened", "alert.closed"]


def test_one_that_stays_down_after_flapping_is_told_when_it_is_no_longer_quiet(
    world_on_both: World, told: AlertFollower, clock: Clock
) -> None:
    add_rule(world_on_both)
    for type in ("cluster.node.down", "cluster.node.up", "cluster.node.down"):
        record(world_on_both, type)
        told.pass_once()
        clock.forward(1)
    assert kinds_told(world_on_both) == ["alert.opened", "alert.closed"]
    clock.forward(597)
    told.pass_once()
    assert len(kinds_told(world_on_both)) == 2
    clock.forward(1)
    told.pass_once()
    told.pass_once()
    assert kinds_told(world_on_both) == ["alert.opened", "alert.closed", "alert.opened"]


def test_an_end_that_stands_in_the_journal_comes_before_what_waits(
    world_on_both: World, told: AlertFollower, clock: Clock
) -> None:
    add_rule(world_on_both)
    for type in ("cluster.node.down", "cluster.node.up", "cluster.node.down"):
        record(world_on_both, type)
    told.pass_once()
    clock.forward(601)
    record(world_on_both, "cluster.node.up")
    told.pass_once()
    told.pass_once()
    assert kinds_told(world_on_both) == ["alert.opened", "alert.closed"]


def test_a_removed_machine_has_no_open_alert_and_nobody_is_told_it_is_up(
    world_on_both: World, told: AlertFollower
) -> None:
    add_rule(world_on_both)
    record(world_on_both, "cluster.node.down")
    record(world_on_both, "cluster.node.cloned", reason="two")
    record(world_on_both, "cluster.node.removed")
    told.pass_once()
    assert all(row["closed_at"] is not None for row in rows(world_on_both, alerts))
    assert kinds_told(world_on_both) == ["alert.opened", "alert.opened"]


def open_of(world: World) -> list[str]:
    return sorted(row["about"] for row in rows(world, alerts, alerts.c.closed_at.is_(None)))


def test_the_alert_of_each_part_of_a_gpu_closes_when_they_are_cleared(
    world_on_both: World, told: AlertFollower
) -> None:
    host = Host(world_on_both, "m", gpu(1), gpu(1, uuid="MIG-1"))
    host.say(xid(95))
    told.pass_once()
    assert open_of(world_on_both) == ["GPU-1", "MIG-1"]
    clear(host, "MIG-1")
    told.pass_once()
    assert open_of(world_on_both) == []


def test_the_alert_of_a_gpu_that_was_moved_is_where_the_gpu_is(world_on_both: World, told: AlertFollower) -> None:
    here, there = Host(world_on_both, "a"), Host(world_on_both, "b", gpu(8))
    here.say(xid(79))
    there.gpus.append(gpu(1, slot="0000:0f:00.0"))
    there.changed()
    record(world_on_both, "cluster.node.removed", "a")
    told.pass_once()
    assert open_of(world_on_both) == ["GPU-1"], "it went on before its old machine was removed"
    record(world_on_both, "cluster.node.removed", "b")
    told.pass_once()
    assert open_of(world_on_both) == []


def test_a_replaced_gpu_that_comes_back_has_an_open_alert_again(world_on_both: World, told: AlertFollower) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    for out, is_open in ((True, []), (False, ["GPU-1"])):
        swap(host, out=out)
        told.pass_once()
        assert open_of(world_on_both) == is_open


def test_rules_choose_by_kind_and_cluster(world_on_both: World, told: AlertFollower) -> None:
    up = add_rule(world_on_both, "machine_up")
    down = add_rule(world_on_both, "machine_down", cluster="default")
    with world_on_both.db.write() as tx:
        other = add_cluster_rule(tx, world_on_both, up)
    record(world_on_both, "cluster.node.down")
    record(world_on_both, "cluster.node.up")
    told.pass_once()
    told_rules = [(row["rule_id"], row["type"]) for row in rows(world_on_both, deliveries)]
    assert told_rules == [(down, "alert.opened"), (up, "alert.closed")]
    assert other


def add_cluster_rule(tx: Tx, world: World, like: str) -> str:
    """Copy a rule to one of a cluster where nothing happens, and of every kind."""
    from corral.store.tables.alerts import alert_rules as table

    row = dict(tx.one(select(table).where(table.c.id == like)) or {})
    row |= {"id": "0" * 36, "kinds": [], "cluster_id": "1" * 36}
    tx.run(insert(table).values(**row))
    return str(row["id"])


def test_rules_that_tell_by_one_webhook_tell_it_once(world_on_both: World, told: AlertFollower) -> None:
    hook = add_webhook(world_on_both)
    for _ in range(2):
        add_rule(world_on_both, told=Told(webhook=hook))
    record(world_on_both, "cluster.node.down")
    told.pass_once()
    (delivery,) = rows(world_on_both, deliveries)
    event = json.loads(delivery["body"])
    assert delivery["webhook_id"] == hook and event["type"] == "io.corral.alert.opened"
    assert event["source"] == "https://corral.test/api/v1/orgs/acme" and event["data"]["kind"] == "machine_down"


def test_a_webhook_is_told_of_its_types_of_events_since_it_was_made(
    world_on_both: World, told: AlertFollower, clock: Clock
) -> None:
    record(world_on_both, "cluster.node.condition", change="before")
    clock.forward(1)
    hook = add_webhook(world_on_both, "cluster.node.*")
    record(world_on_both, "cluster.node.condition", change="after")
    record(world_on_both, "workload.failed")
    told.pass_once()
    (delivery,) = rows(world_on_both, deliveries)
    event = json.loads(delivery["body"])
    assert (delivery["webhook_id"], delivery["type"]) == (hook, "cluster.node.condition")
    assert event["data"]["data"]["change"] == "after" and event["id"].endswith(f".{delivery['event_seq']}")


def test_nobody_is_told_of_another_organisations_events(world_on_both: World, told: AlertFollower) -> None:
    mine = add_webhook(world_on_both, "cluster.*", "workload.*")
    add_rule(world_on_both)
    record(world_on_both, "cluster.node.down", "gpu-9", "rival")
    told.pass_once()
    assert not rows(world_on_both, deliveries)
    (alert,) = rows(world_on_both, alerts)
    assert alert["org_id"] == world_on_both.ids.orgs["rival"]
    theirs = add_webhook(world_on_both, "cluster.node.up", who="rival", org="rival")
    record(world_on_both, "cluster.node.up", "gpu-9", "rival")
    record(world_on_both, "cluster.node.up", "gpu-1")
    told.pass_once()
    found = {
        (row["webhook_id"], json.loads(row["body"])["data"]["machine_id"]) for row in rows(world_on_both, deliveries)
    }
    ids = world_on_both.ids.machines
    assert found == {(theirs, ids["gpu-9"]), (mine, ids["gpu-1"])}


def test_a_disabled_rule_and_one_of_a_disabled_webhook_tell_nobody(world_on_both: World, told: AlertFollower) -> None:
    hook = add_webhook(world_on_both, "cluster.*")
    add_rule(world_on_both, told=Told(webhook=hook))
    own = add_rule(world_on_both)
    with world_on_both.act("admin", org="acme") as ctx:
        hooks.change(ctx, SEAL, hook, hooks.Change(enabled=False))
        alert_rules.change(ctx, SEAL, own, Asked(enabled=False))
    record(world_on_both, "cluster.node.down")
    told.pass_once()
    assert not rows(world_on_both, deliveries)
    assert rows(world_on_both, alerts), "the alert is there all the same"


def test_a_webhook_for_which_too_much_waits_is_disabled(
    world_on_both: World, told: AlertFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_rules, "WAITING_MAX", 3)
    hook = add_webhook(world_on_both, "cluster.*")
    other = add_webhook(world_on_both, "cluster.node.up")
    for _ in range(3):
        record(world_on_both, "cluster.node.condition")
    told.pass_once()
    assert len(kinds_told(world_on_both)) == 3
    record(world_on_both, "cluster.node.up")
    told.pass_once()
    rows_now = {row["id"]: row for row in rows(world_on_both, webhooks)}
    assert not rows_now[hook]["enabled"] and "3" in rows_now[hook]["disabled_because"]
    waiting = rows(world_on_both, deliveries, deliveries.c.next_at.is_not(None))
    assert [row["webhook_id"] for row in waiting] == [other]
    assert [row["type"] for row in _audit(world_on_both)][-1] == "webhook.disabled"


def _audit(world: World) -> Sequence[Row]:
    with world.db.read() as tx:
        return tx.all(select(journal).order_by(journal.c.seq))


def test_what_has_no_end_of_its_own_is_closed_in_time(world_on_both: World, told: AlertFollower, clock: Clock) -> None:
    record(world_on_both, "cluster.token.replayed", token="t")
    told.pass_once()
    clock.forward(timedelta(hours=23).total_seconds())
    with world_on_both.db.write() as tx:
        telling.close_lapsed(tx)
    assert rows(world_on_both, alerts)[0]["closed_at"] is None
    clock.forward(timedelta(hours=1).total_seconds())
    with world_on_both.db.write() as tx:
        telling.close_lapsed(tx)
    assert rows(world_on_both, alerts)[0]["closed_at"] is not None


def test_the_database_refuses_a_second_open_alert_of_a_condition(world_on_both: World, told: AlertFollower) -> None:
    record(world_on_both, "cluster.node.down")
    told.pass_once()
    row = dict(rows(world_on_both, alerts)[0])
    with world_on_both.db.write() as tx:
        assert not tx.insert_unless_taken(insert(alerts).values(**{**row, "id": "0" * 36}))
        assert tx.insert_unless_taken(insert(alerts).values(**{**row, "id": "0" * 36, "closed_at": tx.now}))


def test_telling_sending_and_changing_at_once_wait_for_one_another_in_no_circle(
    world_on_both: World, told: AlertFollower
) -> None:
    """Acts that touch the same webhooks, rules, outbox and site in orders of their own. PostgreSQL ends a circle."""
    world, made = world_on_both, [add_webhook(world_on_both, "cluster.node.*") for _ in range(4)]
    for hook in made:
        add_rule(world, told=Told(webhook=hook))

    def tell() -> None:
        for number in range(ROUNDS):
            record(world, "cluster.node.down" if number % 2 else "cluster.node.up")
            told.pass_once()

    def send() -> None:
        for number in range(ROUNDS):
            with world.db.write() as tx:
                outcomes = [Outcome(200 if number % 3 else 503), Outcome(None)]
                dues = sorted(all_due(tx), key=lambda due: due.target_id, reverse=bool(number % 2))
                sending.settle(tx, [sending.Result(due, outcomes[n % 2]) for n, due in enumerate(dues)], lambda: 0.5)

    def change(hook: str) -> None:
        for number in range(ROUNDS):
            with world.act("admin", org="acme") as ctx:
                hooks.change(ctx, SEAL, hook, hooks.Change(enabled=bool(number % 2)))
            with world.act("operator") as ctx:
                site.change(ctx, f"call {number}", None)

    jobs: list[Callable[[], None]] = [tell, send, partial(change, made[0]), partial(change, made[1])]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for running in [pool.submit(job) for job in jobs]:
            running.result(120)
    told.pass_once()
    assert len([row for row in rows(world, alerts) if row["closed_at"] is None]) <= 1
