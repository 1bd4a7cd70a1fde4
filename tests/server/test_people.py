"""The site's first day over HTTP: operator, organisation, owner, members, workspaces, tokens (spec 05, spec 50)."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from corral.server import openapi
from corral.server.app import create_app
from corral.server.config import Config
from corral.server.routes import agent_files
from corral.store import users as user_rows
from corral.store.engine import Database
from corral.usecases import idempotency, passwords, site
from tests.conftest import Clock
from tests.world import Client, World, public_key

PASSWORD = "correct horse battery"


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def test_from_the_first_link_to_a_member_at_work(db: Database, tmp_path: Path) -> None:
    app = create_app(Config(str(db.url), tmp_path, public_url="https://corral.test"), db)
    app.state.ca_fingerprint = "00ff"
    http = TestClient(app, base_url="https://corral.test")
    nobody = Client(http, None)
    with db.write() as tx:
        first = site.first_start(tx)

    def by_link(link: str, login: str, **more: str) -> tuple[Client, dict[str, Any]]:
        answer = ok(nobody.post("/api/v1/login/link", json={"link": link, "login": login, **more}))
        return Client(http, answer["token"]), answer

    operator, _ = by_link(f"https://corral.test/login#{first}", "root", name="Root", password=PASSWORD)
    assert ok(operator.get("/api/v1/site"))["hosted_machine_limit"] == 10
    ok(operator.post("/api/v1/orgs", json={"slug": "acme", "name": "Acme"}), 201)
    link = ok(operator.post("/api/v1/orgs/acme/owner-invitations", json={}), 201)["link"]
    assert link.startswith("https://corral.test/login#corl_") and link.endswith("&ca=00ff")
    owner, answer = by_link(link, "ada", name="Ada")
    assert answer["orgs"] == [{"slug": "acme", "name": "Acme", "role": "owner"}]
    ok(owner.post("/api/v1/orgs/acme/hosted-cluster"))
    ok(owner.post("/api/v1/orgs/acme/workspaces", json={"slug": "research"}), 201)
    ok(owner.put("/api/v1/orgs/acme/workspaces/research/access/default", json={"pools": ["*"], "quota": {"gpus": 8}}))
    link = ok(owner.post("/api/v1/orgs/acme/invitations", json={"role": "member", "login": "bob"}), 201)["link"]
    member, _ = by_link(link, "bob", password=PASSWORD)
    assert ok(member.get("/api/v1/orgs/acme/workspaces"))["items"] == []
    ok(owner.put("/api/v1/orgs/acme/workspaces/research/members/bob", json={"part": "member"}))
    access = ok(member.get("/api/v1/orgs/acme/workspaces/research/access"))["items"][0]
    assert (access["cluster"], access["pools"], access["quota"]["gpus"]) == ("default", ["*"], 8)
    ok(member.post("/api/v1/me/ssh-keys", json={"public_key": public_key("bob@laptop")}), 201)
    token = ok(member.post("/api/v1/me/tokens", json={"name": "ci", "scopes": ["org:read"]}), 201)["token"]
    program = Client(http, token)
    assert [org["slug"] for org in ok(program.get("/api/v1/orgs"))["items"]] == ["acme"]
    assert ok(program.get("/api/v1/me"), 403)["code"] == "FORBIDDEN"
    again = ok(nobody.post("/api/v1/login", json={"login": "bob", "password": PASSWORD}))
    assert again["user"]["login"] == "bob" and again["token"]
    ok(owner.delete("/api/v1/orgs/acme/members/bob"), 204)
    assert ok(program.get("/api/v1/orgs"))["items"] == []
    assert ok(program.get("/api/v1/orgs/acme"), 404)["code"] == "NOT_FOUND"
    audit = [entry["type"] for entry in ok(operator.get("/api/v1/site/audit"))["items"]]
    expected = {"site.started", "org.created", "org.member.invited", "user.logged_in", "token.created", "ssh_key.added"}
    expected |= {"access.denied"}
    assert set(audit) == expected


def test_a_one_time_secret_is_not_given_again_for_the_same_idempotency_key(world: World) -> None:
    for who, path, body, secret in (
        ("member", "/api/v1/me/tokens", {"name": "ci", "scopes": ["me"]}, "token"),
        ("owner", "/api/v1/orgs/acme/invitations", {"role": "member"}, "link"),
    ):
        headers = {"Idempotency-Key": "once"}
        first = ok(world.client(who).post(path, json=body, headers=headers), 201)
        again = ok(world.client(who).post(path, json=body, headers=headers), 201)
        assert first[secret] and again == {**first, secret: None}
        changed = {**body, "name": "x"} if "name" in body else {"role": "admin"}
        other = world.client(who).post(path, json=changed, headers=headers)
        assert ok(other, 422)["code"] == "IDEMPOTENCY_KEY_REUSED"


def test_lists_come_in_pages_that_miss_and_repeat_nothing(world: World) -> None:
    for number in range(7):
        ok(world.client("admin").post("/api/v1/orgs/acme/workspaces", json={"slug": f"w{number}"}), 201)
        world.add_member(f"user{number}")
    for path, key, count in (("/api/v1/orgs/acme/workspaces", "slug", 9), ("/api/v1/orgs/acme/members", "login", 12)):
        seen: list[str] = []
        token = ""
        while token is not None:
            answer = ok(world.client("admin").get(f"{path}?page_size=2" + (f"&page_token={token}" if token else "")))
            seen += [item[key] for item in answer["items"]]
            token = answer["next_page_token"]
        assert seen == sorted(set(seen)) and len(seen) == count


def test_the_sites_audit_comes_in_pages_newest_first(world: World) -> None:
    for number in range(5):
        ok(world.client("operator").patch("/api/v1/site", json={"contact": f"line {number}"}))
    first = ok(world.client("operator").get("/api/v1/site/audit?page_size=3"))
    rest = ok(world.client("operator").get(f"/api/v1/site/audit?page_size=3&page_token={first['next_page_token']}"))
    lines = [entry["data"]["after"]["contact"] for entry in first["items"] + rest["items"]]
    assert lines == [f"line {number}" for number in (4, 3, 2, 1, 0)]
    assert rest["next_page_token"] is None
    entry = first["items"][0]
    assert (entry["actor"], entry["actor_kind"], entry["type"]) == ("operator", "user", "site.changed")
    assert entry["address"] and entry["request_id"] and entry["at"].endswith("Z")


def test_a_refused_login_says_when_to_come_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "matches", lambda hash, password: False)
    for _ in range(5):
        answer = world.client().post("/api/v1/login", json={"login": "member", "password": "wrong password"})
        assert answer.status_code == 401
    answer = world.client().post("/api/v1/login", json={"login": "member", "password": "wrong password"})
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == str(answer.json()["details"]["retry_after_s"])


def test_nobody_learns_by_a_refusal_who_exists(world: World) -> None:
    hash = passwords.hashed(PASSWORD)
    with world.db.write() as tx:
        user_rows.change(tx, world.ids.users["member"], password_hash=hash)
    answers = []
    for login in ("member", "lead", "nobody"):
        answer = world.client().post("/api/v1/login", json={"login": login, "password": "wrong password"})
        answers.append((answer.status_code, {**answer.json(), "request_id": ""}))
    assert answers == [answers[0]] * 3


def test_a_denied_role_is_audited_in_the_organisation(world: World) -> None:
    assert world.client("member").patch("/api/v1/orgs/acme", json={"name": "Mine"}).status_code == 403
    entry = ok(world.client("operator").get("/api/v1/site/audit"))["items"]
    assert entry == []
    with world.running():
        entry = ok(world.client("owner").get("/api/v1/orgs/acme/audit"))["items"][0]
    assert (entry["type"], entry["actor"]) == ("access.denied", "member")


def test_the_same_denial_is_audited_once_a_minute_with_how_many_were_left_out(world: World, clock: Clock) -> None:
    def denied(number: int) -> None:
        assert world.client("member").patch("/api/v1/orgs/acme", json={"name": str(number)}).status_code == 403

    for number in range(10):
        denied(number)
    assert world.client("lead").patch("/api/v1/orgs/acme", json={"name": "x"}).status_code == 403
    clock.forward(60)
    denied(10)
    entries = ok(world.client("owner").get("/api/v1/orgs/acme/audit"))["items"]
    assert [(entry["actor"], entry["data"].get("left_out")) for entry in entries] == [
        ("member", 9),
        ("lead", None),
        ("member", None),
    ]


def test_what_a_client_claims_to_be_its_address_is_cut(world_on_both: World) -> None:
    world = world_on_both
    far = TestClient(world.app, base_url="http://corral.test", client=("x" * 300, 1))
    headers = {"Authorization": f"Bearer {world.tokens['owner']}"}
    assert far.patch("/api/v1/orgs/acme", json={"name": "Acme Ltd"}, headers=headers).status_code == 200
    entries = ok(world.client("owner").get("/api/v1/orgs/acme/audit"))["items"]
    assert entries[0]["address"] == "x" * 64


def test_the_same_request_sent_twice_at_once_gets_one_answer(
    world_on_both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on_both
    recall, both = idempotency.recall, threading.Barrier(2)

    def recall_together(*given: Any) -> Any:
        found = recall(*given)
        if not world.db.is_sqlite:  # there one waits for the other anyhow
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(5)
            both.abort()
        return found

    monkeypatch.setattr(idempotency, "recall", recall_together)

    def ask(_: int) -> Any:
        body, headers = {"name": "ci", "scopes": ["all"]}, {"Idempotency-Key": "k1"}
        return world.client("member").post("/api/v1/me/tokens", json=body, headers=headers)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert (first.status_code, second.status_code) == (201, 201), (first.json(), second.json())
    assert first.json()["id"] == second.json()["id"]


def test_what_strangers_download_is_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def encoded(document: dict[str, Any]) -> bytes:
        made.append(document)
        return json.dumps(document).encode()

    monkeypatch.setattr(openapi, "encoded", encoded)
    first, again = (world.client().get("/api/v1/openapi.json") for _ in range(2))
    assert first.json() == again.json() == world.app.openapi()
    assert len(made) == 1
    assert agent_files.install_script() is agent_files.install_script()


def test_the_login_page_tells_what_to_do_and_holds_no_script(world: World) -> None:
    answer = world.client().get("/login")
    assert "corral login" in answer.text and "<script" not in answer.text
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_an_owner_over_http_hears_that_the_last_owner_stays(world: World) -> None:
    answer = world.client("owner").delete("/api/v1/orgs/acme/members/owner")
    assert (answer.status_code, answer.json()["code"]) == (409, "LAST_OWNER")
