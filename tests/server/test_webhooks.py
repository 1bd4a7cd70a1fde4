"""Webhooks over HTTP: secrets shown once, where they may lead, what others learn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from corral.domain.errors import Refusal
from corral.domain.webhooks import WEBHOOKS_MAX
from corral.server.outbound import Outbound
from corral.server.sealing import FILE, SiteKey
from corral.store.tables.alerts import deliveries, webhooks
from corral.store.tables.journal import journal
from corral.usecases import webhooks as use
from tests.usecases.test_telling import SEAL
from tests.world import World

PATH = "/api/v1/orgs/acme/webhooks"
URL = "https://hooks.example.com/secret-path?token=secret-query"


@pytest.fixture
def world(world: World) -> World:
    """The world, whose names all lead to one public address, but those that begin with `inside`."""
    resolver = lambda host, port: ["10.0.0.7"] if host.startswith("inside") else ["8.8.8.8"]  # noqa: E731
    world.app.state.outbound = Outbound(world.app.state.seal, world.app.state.outbound.messages, resolver=resolver)
    return world


def make(world: World, who: str = "admin", **body: Any) -> dict[str, Any]:
    answer = world.client(who).post(PATH, json={"name": "pager", "url": URL, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def audit(world: World, type: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        return [dict(row) for row in tx.all(select(journal).where(journal.c.type == type).order_by(journal.c.seq))]


def test_a_secret_is_shown_once_and_stored_sealed(world: World) -> None:
    headers = {"Idempotency-Key": "k"}
    body = {"name": "pager", "url": URL, "types": ["cluster.node.*"]}
    first = world.client("admin").post(PATH, json=body, headers=headers).json()
    again = world.client("admin").post(PATH, json=body, headers=headers).json()
    assert first["secret"].startswith("whsec_") and again == {**first, "secret": None}
    assert first["secret"] not in world.client("admin").get(PATH).text
    with world.db.read() as tx:
        (row,) = tx.all(select(webhooks))
    assert first["secret"].encode() not in row["secret"] and b"whsec" not in row["secret"]
    assert world.app.state.seal.open(row["secret"], first["id"]) == first["secret"]


def test_each_change_has_one_audit_entry_without_secrets(world: World) -> None:
    id = make(world)["id"]
    client = world.client("admin")
    assert client.patch(f"{PATH}/{id}", json={"name": "other", "types": ["workload.failed"]}).status_code == 200
    assert client.patch(f"{PATH}/{id}", json={"name": "other"}).status_code == 200  # changes nothing
    assert client.patch(f"{PATH}/{id}", json={"new_secret": True}).json()["secret"].startswith("whsec_")
    assert client.post(f"{PATH}/{id}/test").status_code == 202
    assert client.delete(f"{PATH}/{id}").status_code == 204
    shown = {"url": "https://hooks.example.com/…", "enabled": True}
    (created,), changed, (removed,) = (audit(world, f"webhook.{what}") for what in ("created", "changed", "removed"))
    assert created["data"]["after"] == {"name": "pager", "types": [], **shown} and created["actor_name"] == "admin"
    assert len(changed) == 2 and len(audit(world, "webhook.tested")) == 1
    assert changed[0]["data"]["before"]["types"] == [] and changed[0]["data"]["after"]["types"] == ["workload.failed"]
    assert changed[1]["data"]["after"]["new_secret"] is True
    assert removed["data"]["before"]["name"] == "other"
    everything = str([created, changed, removed])
    assert "secret-path" not in everything and "secret-query" not in everything and "whsec_" not in everything


@pytest.mark.parametrize(
    "url",
    [
        *("https://inside.example.com/", "http://hooks.example.com/", "https://user:pw@hooks.example.com/"),
        *(
            "ftp://hooks.example.com/",
            "hooks.example.com",
            "https://hooks.example.com/#x",
            "https://hooks.example.com:0/",
        ),
    ],
)
def test_a_url_that_must_not_be_told_is_refused_when_made_and_when_changed(world: World, url: str) -> None:
    assert code(world.client("admin").post(PATH, json={"name": "x", "url": url})) == (400, "INVALID_URL")
    id = make(world)["id"]
    assert code(world.client("admin").patch(f"{PATH}/{id}", json={"url": url})) == (400, "INVALID_URL")
    assert world.client("admin").get(PATH).json()["items"][0]["url"] == URL


def test_the_operator_opens_private_networks(world: World) -> None:
    inside = {"name": "x", "url": "http://inside.example.com/"}
    assert code(world.client("admin").post(PATH, json=inside)) == (400, "INVALID_URL")
    wrong = world.client("operator").patch("/api/v1/site", json={"private_targets": ["10.0.0.1/8"]})
    assert code(wrong) == (400, "INVALID_REQUEST")
    site = world.client("operator").patch("/api/v1/site", json={"private_targets": ["10.0.0.0/8"]})
    assert site.json()["private_targets"] == ["10.0.0.0/8"]
    assert world.client("admin").post(PATH, json=inside).status_code == 201
    assert audit(world, "site.changed")[-1]["data"]["after"] == {"private_targets": ["10.0.0.0/8"]}
    assert world.client("operator").patch("/api/v1/site", json={"private_targets": []}).json()["private_targets"] == []
    assert code(world.client("admin").post(PATH, json=inside)) == (400, "INVALID_URL")


def test_types_and_names_are_checked(world: World) -> None:
    for body in ({"types": ["nothing.*"]}, {"types": ["*"]}, {"types": ["user.logged_in"]}, {"types": "x"}):
        answer = world.client("admin").post(PATH, json={"name": "x", "url": URL, **body})
        assert code(answer) == (400, "INVALID_REQUEST")
    answer = world.client("admin").post(PATH, json={"name": "\x1b[1m", "url": URL})
    assert code(answer) == (400, "INVALID_NAME")


def test_whoever_may_not_ask_makes_the_site_look_nothing_up(world: World) -> None:
    def looked_up(host: str, port: int) -> list[str]:
        raise AssertionError(f"{host} was looked up")

    world.app.state.outbound = Outbound(world.app.state.seal, world.app.state.outbound.messages, resolver=looked_up)
    for url in (URL, "no url"):
        body = {"name": "x", "url": url}
        assert code(world.client("member").post(PATH, json=body)) == (403, "FORBIDDEN")
        assert code(world.client("rival").post(PATH, json=body)) == (404, "NOT_FOUND")
        assert code(world.client().post(PATH, json=body)) == (401, "UNAUTHENTICATED")


def test_another_organisations_webhook_answers_as_an_absent_one(world: World) -> None:
    id = make(world)["id"]
    foreign = "/api/v1/orgs/rival/webhooks"
    rival = world.client("rival")
    for method, path, body in (
        ("PATCH", f"{foreign}/{id}", {"name": "x"}),
        ("DELETE", f"{foreign}/{id}", None),
        ("POST", f"{foreign}/{id}/test", None),
        ("GET", f"{foreign}/{id}/deliveries", None),
    ):
        theirs, absent = (rival.request(method, path.replace(id, name), json=body) for name in (id, "absent"))
        assert theirs.status_code == absent.status_code == 404
        assert theirs.json()["message"] == absent.json()["message"]
    assert world.client("rival").get(foreign).json()["items"] == []
    assert world.client("admin").get(PATH).json()["items"][0]["name"] == "pager"


def test_a_test_is_put_out_once_at_a_time_and_listed(world: World) -> None:
    id = make(world)["id"]
    client = world.client("admin")
    sent = client.post(f"{PATH}/{id}/test").json()
    assert code(client.post(f"{PATH}/{id}/test")) == (429, "RATE_LIMITED")
    (row,) = client.get(f"{PATH}/{id}/deliveries").json()["items"]
    assert (row["id"], row["webhook_id"], row["type"]) == (sent["delivery"], f"msg_{sent['delivery']}", "test")
    assert (row["state"], row["attempts"], row["status"]) == ("waiting", 0, None)
    client.patch(f"{PATH}/{id}", json={"enabled": False})
    assert client.get(f"{PATH}/{id}/deliveries").json()["items"][0]["state"] == "given_up"
    assert code(client.post(f"{PATH}/{id}/test")) == (409, "CONFLICT")


def test_lists_page(world: World) -> None:
    ids = [make(world)["id"] for _ in range(3)]
    first = world.client("admin").get(PATH, params={"page_size": 2}).json()
    rest = world.client("admin").get(PATH, params={"page_token": first["next_page_token"]}).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == sorted(ids)
    assert rest["next_page_token"] is None
    world.client("admin").post(f"{PATH}/{ids[0]}/test")
    with world.db.write() as tx:
        (row,) = tx.all(select(deliveries))
        for number in range(2):
            tx.run(deliveries.insert().values(**{**row, "id": f"0{number}"}))
    path = f"{PATH}/{ids[0]}/deliveries"
    first = world.client("admin").get(path, params={"page_size": 2}).json()
    rest = world.client("admin").get(path, params={"page_token": first["next_page_token"]}).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == [row["id"], "01", "00"]


def test_a_lost_key_is_said_and_breaks_nothing(world: World) -> None:
    id = make(world)["id"]
    (world.config.state_dir / FILE).unlink()
    world.app.state.seal = SiteKey(world.config.state_dir)
    (shown,) = world.client("admin").get(PATH).json()["items"]
    assert "set it again" in shown["problem"] and shown["enabled"]
    changed = world.client("admin").patch(f"{PATH}/{id}", json={"new_secret": True}).json()
    assert changed["problem"] == "" and changed["secret"].startswith("whsec_")


def test_of_simultaneous_webhooks_at_the_limit_exactly_the_rest_are_made(world_on_both: World) -> None:
    start = threading.Barrier(8)

    def attempt(number: int) -> bool:
        start.wait()
        try:
            for _ in range(WEBHOOKS_MAX // 4):
                with world_on_both.act("admin", org="acme") as ctx:
                    use.create(ctx, SEAL, use.Asked(f"hook {number}", URL, []))
        except Refusal as refusal:
            return refusal.code == "CONFLICT"
        return False

    with ThreadPoolExecutor(8) as pool:
        refused = list(pool.map(attempt, range(8)))
    with world_on_both.db.read() as tx:
        assert len(tx.all(select(webhooks))) == WEBHOOKS_MAX
    assert any(refused)
