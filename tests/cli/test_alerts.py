"""Alerts, rules and webhooks on the command line, against a site that runs and receivers that are real."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from standardwebhooks import Webhook

from corral.domain.events import Entry, Subject
from corral.store.transaction import SITE
from tests.cli.conftest import Cli, Running
from tests.live_server import eventually
from tests.receivers import Answer, Mailbox, Receiver, http_receiver, mail_server


@pytest.fixture
def receiver(cli: Cli) -> Iterator[Receiver]:
    """A program that takes webhooks, on loopback, which the operator has opened."""
    assert cli("operator", "site", "settings", "--private-target", "127.0.0.0/8").code == 0
    with http_receiver() as made:
        yield made


@pytest.fixture
def box(cli: Cli) -> Iterator[Mailbox]:
    assert cli("operator", "site", "settings", "--private-target", "127.0.0.0/8").code == 0
    with mail_server() as made:
        yield made


def goes_down(running: Running) -> None:
    with running.site.db.write() as tx:
        ids = running.world.ids
        subject = Subject(ids.orgs["acme"], ids.clusters["default"], machine=ids.machines["gpu-1"])
        tx.record(Entry("cluster.node.down", subject, {"name": "gpu-1"}), SITE)


def test_a_webhook_is_made_tested_and_told_of_events_and_alerts(cli: Cli, receiver: Receiver, running: Running) -> None:
    running.world.add_machine("gpu-1")
    made = cli("admin", "webhook", "create", "pager", receiver.url, "--type", "cluster.node.*")
    secret = made.out.strip()
    assert secret.startswith("whsec_") and secret not in cli("admin", "webhook", "list").out
    (row,) = json.loads(cli("admin", "webhook", "list", "--json").out)
    id = row["id"]
    ran = cli("admin", "webhook", "test", id)
    assert ran.code == 0 and "204" in ran.out
    assert cli("admin", "alert", "add-rule", "down", "--webhook", id, "--kind", "machine_down").code == 0
    goes_down(running)
    eventually(lambda: len(receiver.received) == 3)
    events = [Webhook(secret).verify(one.body, one.headers) for one in receiver.received]
    assert {event["type"] for event in events[1:]} == {"io.corral.cluster.node.down", "io.corral.alert.opened"}
    listed = eventually(lambda: _all_delivered(cli, id))
    assert listed.count("delivered") == 3
    assert "Machine gpu-1 is down" in cli("admin", "alert", "list", "--open", "--machine", "gpu-1").out
    assert "No alert" in cli("member", "alert", "list").err


def _all_delivered(cli: Cli, id: str) -> str:
    out = cli("admin", "webhook", "deliveries", id).out
    return out if "waiting" not in out else ""


def test_a_webhook_that_does_not_take_a_test_is_said(cli: Cli, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(500)
    (id,) = [json.loads(cli("admin", "webhook", "create", "pager", receiver.url, "--json").out)["id"]]
    ran = cli("admin", "webhook", "test", id)
    assert ran.code == 1 and "It answered 500" in ran.err
    assert cli("admin", "webhook", "change", id, "--disable").code == 0
    ran = cli("admin", "webhook", "test", id)
    assert ran.code == 1 and "Enable it first" in ran.err
    changed = json.loads(cli("admin", "webhook", "change", id, "--enable", "--new-secret", "--json").out)
    assert changed["enabled"] and changed["secret"].startswith("whsec_")
    assert cli("admin", "webhook", "remove", id).code == 0
    assert cli("admin", "webhook", "deliveries", id).code == 3


def test_a_rule_that_tells_by_mail_is_tested(cli: Cli, box: Mailbox) -> None:
    target = f"mailto://bot:s3cret@127.0.0.1:{box.port}?to=ops@example.com&from=corral@example.com"
    made = json.loads(cli("admin", "alert", "add-rule", "ops", target, "--kind", "machine_down", "--json").out)
    listed = cli("admin", "alert", "rules")
    assert "ops@example.com" in listed.out and "s3cret" not in listed.out + json.dumps(made)
    ran = cli("admin", "alert", "test", made["id"])
    assert ran.code == 0 and "Told" in ran.out
    assert box.mails[0]["Subject"] == "A test of alert rule ops"
    box.refuse = True
    ran = cli("admin", "alert", "test", made["id"])
    assert ran.code == 1 and "did not take it" in ran.err
    assert cli("admin", "alert", "change-rule", made["id"], "--disable").code == 0
    assert "disabled" in cli("admin", "alert", "rules").out
    assert cli("admin", "alert", "remove-rule", made["id"]).code == 0
    assert cli("admin", "alert", "test", made["id"]).code == 3


def test_what_is_no_target_is_refused(cli: Cli) -> None:
    ran = cli("admin", "alert", "add-rule", "x", "exec://sh")
    assert ran.code == 1 and "INVALID_URL" in ran.err
    assert cli("admin", "alert", "add-rule", "x").code == 2
    ran = cli("admin", "webhook", "create", "x", "https://127.0.0.1/")
    assert ran.code == 1 and "INVALID_URL" in ran.err
    assert cli("member", "webhook", "list").code == 4
