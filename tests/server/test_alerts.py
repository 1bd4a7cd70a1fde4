"""Alerts and alert rules over HTTP: who sees which, what is told, what is never shown; and all of it, for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from standardwebhooks import Webhook

from corral.controllers.alerts import AlertFollower
from corral.domain.events import Entry, Subject
from corral.server.messages import Messages
from corral.server.outbound import Outbound
from corral.server.sealing import SiteKey
from corral.store.tables.alerts import alert_rules
from corral.store.tables.journal import journal
from corral.store.transaction import SITE
from tests.conftest import Clock
from tests.live_server import eventually
from tests.receivers import Receiver, http_receiver
from tests.world import World

ALERTS = "/api/v1/orgs/acme/alerts"
RULES = "/api/v1/orgs/acme/alert-rules"
HOOKS = "/api/v1/orgs/acme/webhooks"
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/%23ops"


@pytest.fixture
def told(world: World) -> AlertFollower:
    follower = AlertFollower(world.db, lambda: "https://corral.test", lambda: None)
    follower.pass_once()
    for name in ("gpu-1", "gpu-2"):
        world.add_machine(name)
    return follower


def record(world: World, type: str, *, machine: str | None = None, about: str | None = None, **data: Any) -> None:
    """Record an event about a machine or a workspace of acme."""
    ids = world.ids
    subject = Subject(
        ids.orgs["acme"],
        ids.clusters["default"] if machine else None,
        ids.workspaces[f"acme/{about}"] if about else None,
        ids.machines[machine] if machine else None,
    )
    with world.db.write() as tx:
        tx.record(Entry(type, subject, {"name": machine or about, **data}), SITE)


def seen(world: World, who: str, **params: Any) -> list[str]:
    answer = world.client(who).get(ALERTS, params=params)
    assert answer.status_code == 200, answer.text
    return [f"{one['kind']} {one['data']['name']}" for one in answer.json()["items"]]


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def add_rule(world: World, **body: Any) -> dict[str, Any]:
    answer = world.client("admin").post(RULES, json={"name": "ops", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


# -- alerts


def test_members_see_alerts_about_their_workspaces_and_admins_all(world: World, told: AlertFollower) -> None:
    record(world, "cluster.node.down", machine="gpu-1")
    for workspace in ("research", "private"):
        record(world, "workspace.budget.reached", about=workspace, percent=80, month="2026-03")
    told.pass_once()
    everything = {"budget private", "budget research", "machine_down gpu-1"}
    assert set(seen(world, "admin")) == set(seen(world, "owner")) == everything
    assert seen(world, "member") == seen(world, "lead") == ["budget research"]
    assert seen(world, "outsider") == []
    assert seen(world, "admin", workspace="private") == ["budget private"]
    assert code(world.client("member").get(ALERTS, params={"workspace": "private"})) == (404, "NOT_FOUND")
    assert code(world.client("rival").get(ALERTS)) == (404, "NOT_FOUND")
    assert world.client("rival").get("/api/v1/orgs/rival/alerts").json()["items"] == []


def test_alerts_are_filtered_and_paged(world: World, told: AlertFollower, clock: Clock) -> None:
    for machine in ("gpu-1", "gpu-2"):
        clock.forward(1)
        record(world, "cluster.node.down", machine=machine)
    clock.forward(1)
    record(world, "cluster.node.gpu_fault", machine="gpu-1", gpu="GPU-1", model="H100", code="79", reason="fell off")
    record(world, "cluster.node.up", machine="gpu-1")
    told.pass_once()
    assert seen(world, "admin") == ["gpu_fault gpu-1", "machine_down gpu-2", "machine_down gpu-1"]
    assert seen(world, "admin", open="true") == ["gpu_fault gpu-1", "machine_down gpu-2"]
    assert seen(world, "admin", open="false") == ["machine_down gpu-1"]
    assert seen(world, "admin", kind="machine_down", cluster="default", machine="gpu-2") == ["machine_down gpu-2"]
    first = world.client("admin").get(ALERTS, params={"page_size": 2}).json()
    rest = world.client("admin").get(ALERTS, params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert [one["kind"] for one in first["items"] + rest["items"]] == ["gpu_fault", "machine_down", "machine_down"]
    assert rest["next_page_token"] is None
    fault = first["items"][0]
    assert fault["open"] and fault["count"] == 1 and "79 fell off" in fault["title"]
    for wrong in (
        {"kind": "machine_up"},
        {"kind": "x"},
        {"machine": "gpu-1"},
        {"cluster": "default"},
        {"open": "maybe"},
    ):
        assert code(world.client("admin").get(ALERTS, params=wrong)) == (400, "INVALID_REQUEST")
    assert world.client("admin").get(ALERTS, params={"machine": "x", "cluster": "default"}).status_code == 404


# -- rules


def test_a_target_is_stored_sealed_and_never_shown_again(world: World) -> None:
    made = add_rule(world, target=SLACK, kinds=["gpu_fault", "budget"])
    assert made["target"] == "slack://…" and made["kinds"] == ["gpu_fault", "budget"] and made["webhook"] is None
    shown = world.client("admin").get(RULES).text
    for secret in ("T1JJ3T3L2", "A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ"):
        assert secret not in shown + json.dumps(made)
        with world.db.read() as tx:
            assert secret not in str(tx.all(select(alert_rules))) + str(tx.all(select(journal)))
    assert world.app.state.seal.open(_row(world)["target"], made["id"]) == SLACK


def _row(world: World) -> Any:
    with world.db.read() as tx:
        return tx.one(select(alert_rules))


def test_targets_that_must_not_be_told_are_refused(world: World) -> None:
    for target in ("json://localhost", "slack://", "mailto://a:b@127.0.0.1", "mmosts://localhost/x", "exec://x", ""):
        assert code(world.client("admin").post(RULES, json={"name": "x", "target": target})) == (400, "INVALID_URL")
    for body in ({}, {"target": SLACK, "webhook": "x"}, {"target": SLACK, "kinds": ["x"]}, {"target": 7}):
        assert code(world.client("admin").post(RULES, json={"name": "x", **body})) == (400, "INVALID_REQUEST")
    assert code(world.client("admin").post(RULES, json={"name": "x", "webhook": "absent"})) == (404, "NOT_FOUND")
    assert code(world.client("admin").post(RULES, json={"name": "", "target": SLACK})) == (400, "INVALID_NAME")


@pytest.mark.parametrize("id", ["absent", "a\0b", "\0", "'", "x" * 300, ""])
def test_what_is_no_webhook_is_absent_on_both_databases(world_on_both: World, id: str) -> None:
    for who, org in (("admin", "acme"), ("rival", "rival")):
        answer = world_on_both.client(who).post(f"/api/v1/orgs/{org}/alert-rules", json={"name": "x", "webhook": id})
        assert code(answer) == (404, "NOT_FOUND")


def test_a_rule_is_changed_field_by_field_and_each_change_is_audited(world: World) -> None:
    id = add_rule(world, target=SLACK, cluster="default")["id"]
    client = world.client("admin")
    kept = client.patch(f"{RULES}/{id}", json={"name": "other"}).json()
    assert (kept["cluster"], kept["target"], kept["enabled"]) == ("default", "slack://…", True)
    changed = client.patch(f"{RULES}/{id}", json={"cluster": None, "kinds": ["budget"], "enabled": False}).json()
    assert (changed["cluster"], changed["kinds"], changed["enabled"]) == (None, ["budget"], False)
    assert client.patch(f"{RULES}/{id}", json={"cluster": None}).status_code == 200  # changes nothing
    assert client.delete(f"{RULES}/{id}").status_code == 204
    assert code(client.delete(f"{RULES}/{id}")) == (404, "NOT_FOUND")
    with world.db.read() as tx:
        found = tx.all(select(journal).where(journal.c.type.startswith("alert_rule.")).order_by(journal.c.seq))
    assert [row["type"].partition(".")[2] for row in found] == ["created", "changed", "changed", "removed"]
    assert found[2]["data"]["before"]["cluster"] == "default" and found[2]["data"]["after"]["cluster"] is None
    assert _row(world)["target"] is None, "what opened the target is gone"


def test_another_organisations_rules_and_webhooks_are_absent(world: World) -> None:
    id = add_rule(world, target=SLACK)["id"]
    foreign = "/api/v1/orgs/rival/alert-rules"
    for method, path in (("PATCH", f"{foreign}/{id}"), ("DELETE", f"{foreign}/{id}"), ("POST", f"{foreign}/{id}/test")):
        body = {"name": "x"} if method == "PATCH" else None
        assert code(world.client("rival").request(method, path, json=body)) == (404, "NOT_FOUND")
    assert world.client("rival").get(foreign).json()["items"] == []


def test_a_lost_key_is_said_and_setting_the_target_again_ends_that(world: World, tmp_path: Path) -> None:
    id = add_rule(world, target=SLACK)["id"]
    world.app.state.seal = SiteKey(tmp_path / "another")
    (shown,) = world.client("admin").get(RULES).json()["items"]
    assert "set it again" in shown["problem"]
    again = world.client("admin").patch(f"{RULES}/{id}", json={"target": SLACK}).json()
    assert again["problem"] == ""


def test_a_webhook_by_which_rules_tell_stays_until_they_do_not(world: World, told: AlertFollower) -> None:
    world.app.state.outbound = Outbound(world.app.state.seal, Messages(), resolver=lambda host, port: ["8.8.8.8"])
    hook = world.client("admin").post(HOOKS, json={"name": "h", "url": "https://hooks.example.com/"}).json()["id"]
    id = add_rule(world, webhook=hook)["id"]
    answer = world.client("admin").delete(f"{HOOKS}/{hook}")
    assert code(answer) == (409, "CONFLICT") and "ops" in answer.json()["message"]
    assert world.client("admin").patch(f"{RULES}/{id}", json={"target": SLACK}).json()["webhook"] is None
    assert world.client("admin").delete(f"{HOOKS}/{hook}").status_code == 204
    assert code(world.client("admin").patch(f"{RULES}/{id}", json={"webhook": hook})) == (404, "NOT_FOUND")


# -- all of it


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with http_receiver(tmp_path / "ca", "hooks.example.com") as made:
        yield made


def test_from_the_journal_to_a_receiver_that_checks_signatures(world_on_both: World, receiver: Receiver) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    resolver = lambda host, port: ["127.0.0.1"]  # noqa: E731
    seal = world.app.state.seal
    world.app.state.outbound = Outbound(seal, Messages(), resolver=resolver, trust=receiver.trust)
    world.client("operator").patch("/api/v1/site", json={"private_targets": ["127.0.0.0/8"]})
    with world.running():
        body = {"name": "pager", "url": f"{receiver.url}/in", "types": ["cluster.node.*"]}
        made = world.client("admin").post(HOOKS, json=body).json()
        add_rule(world, webhook=made["id"], kinds=["machine_down", "machine_up"])
        record(world, "cluster.node.down", machine="gpu-1")
        eventually(lambda: len(receiver.received) == 2)
        record(world, "cluster.node.up", machine="gpu-1")
        eventually(lambda: len(receiver.received) == 4)
        path = f"{HOOKS}/{made['id']}/deliveries"
        eventually(lambda: [d["state"] for d in world.client("admin").get(path).json()["items"]] == ["delivered"] * 4)
        listed = {one["webhook_id"] for one in world.client("admin").get(path).json()["items"]}
    events = {}
    for one in receiver.received:
        event = Webhook(made["secret"]).verify(one.body, one.headers)
        events[event["type"].removeprefix("io.corral.")] = event
        assert event["source"] == "http://corral.test/api/v1/orgs/acme" and event["specversion"] == "1.0"
    assert set(events) == {"cluster.node.down", "cluster.node.up", "alert.opened", "alert.closed"}
    assert events["alert.opened"]["data"]["id"] == events["alert.closed"]["data"]["id"]
    assert {one.headers["webhook-id"] for one in receiver.received} == listed
