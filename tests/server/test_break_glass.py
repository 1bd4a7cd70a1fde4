"""Break-glass through every route of the real app, and each use in the tenant's audit (spec 05)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from corral.domain.errors import Refusal
from corral.server.door import Door
from corral.store import journal
from corral.store.transaction import Row, Scope
from corral.usecases import break_glass
from tests.conftest import Clock
from tests.live_server import DEADLINE_S, eventually
from tests.server.test_journal import Listener, listening, record
from tests.server.walk import CALLERS, CODES, ONE, ORG, TABLE, Line, Walk, walking
from tests.world import World

PATH = "/api/v1/orgs/acme/break-glass"
INTO_WORKLOADS = (ONE + "/logs", ONE + "/connection")
OF_A_TENANT = [line for line in TABLE if line.path.startswith(ORG) and line.who[CALLERS.index("operator")] == "F"]


def may_look(line: Line) -> bool:
    """As the spec has it: what an admin may read, and nothing that leads into a workload."""
    return line.method == "GET" and line.who[CALLERS.index("admin")] == "+" and line.path not in INTO_WORKLOADS


@pytest.fixture(scope="module")
def walk(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """A walk on which the operator may look into acme."""
    folder = tmp_path_factory.mktemp("walk")
    shutil.copy(sqlite_template, folder / "corral.db")
    with walking(f"sqlite:///{folder / 'corral.db'}", folder) as made:
        made.db.forgets = False
        with made.world.act("operator", "acme") as ctx:
            break_glass.begin(ctx, "a call for help", 3600)
        made.db.forgets = True
        yield made


@pytest.mark.parametrize("line", OF_A_TENANT, ids=str)
def test_the_operator_reads_what_an_admin_reads_and_changes_nothing(walk: Walk, line: Line) -> None:
    status, body = walk.ask(line, walk.url(line, "operator"), walk.world.tokens["operator"])
    if may_look(line):
        assert status not in (401, 403, 404) and status < 500, body
    else:
        assert (status, body.get("code")) == CODES["F"], body


@pytest.mark.parametrize("line", [line for line in OF_A_TENANT if may_look(line)], ids=str)
def test_a_token_still_needs_its_scope(walk: Walk, line: Line) -> None:
    token = walk.token("operator", ["site"])
    status, body = walk.ask(line, walk.url(line, "operator"), token)
    assert (status, body.get("code")) == CODES["F"], body


@pytest.mark.parametrize("line", OF_A_TENANT, ids=str)
def test_it_opens_no_other_organisation(walk: Walk, line: Line) -> None:
    status, body = walk.ask(line, walk.url(line, "operator", org="rival"), walk.world.tokens["operator"])
    assert (status, body.get("code")) == CODES["F"], body


# --- its trace


def begin(world: World, **body: Any) -> dict[str, Any]:
    answer = world.client("operator").post(PATH, json={"reason": "ticket 7", **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def traced(world: World) -> list[Row]:
    with world.db.read() as tx:
        want = journal.Filter("audit", ["org.break_glass.used"])
        rows = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=99)
    assert {row["actor_name"] for row in rows} <= {"operator"}
    return list(reversed(rows))


def uses(world: World) -> list[str]:
    return [row["data"]["route"] for row in traced(world)]


def paths(world: World) -> list[str]:
    return [row["data"]["path"] for row in traced(world)]


def test_each_use_stands_in_the_tenants_audit_once_a_minute_and_page(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    look = begin(world)
    operator = world.client("operator")
    asked = [f"/api/v1/orgs/acme/{page}" for page in ("clusters", "workspaces/research", "workspaces/private")]
    for _ in range(3):
        for path in asked:
            assert operator.get(path).status_code == 200
    assert paths(world) == asked
    routes = ["GET /api/v1/orgs/{org}/clusters", *["GET /api/v1/orgs/{org}/workspaces/{ws}"] * 2]
    assert uses(world) == routes
    clock.forward(60)
    operator.get("/api/v1/orgs/acme/clusters")
    assert uses(world) == [*routes, routes[0]]
    found = world.client("owner").get("/api/v1/orgs/acme/audit").json()["items"]
    assert found[0]["type"] == "org.break_glass.used"
    assert found[0]["data"]["look"] == look["id"]
    site = world.client("operator").get("/api/v1/site/audit").json()["items"]
    assert [entry["type"] for entry in site] == ["org.break_glass.began"]


def test_what_is_looked_at_is_the_subject_of_its_trace(world_on_both: World) -> None:
    """By whichever way it is named, so that an audit that is filtered by it shows that it was read."""
    world, operator = world_on_both, world_on_both.client("operator")
    for name in ("gpu-1", "gpu-2"):
        world.add_machine(name)
        world.add_workload(f"on-{name}", name)
    begin(world)
    research, cluster = world.ids.workspaces["acme/research"], world.ids.clusters["default"]
    subjects = {
        "workspaces/research": (research, None, None, None),
        "workspaces/private/machines": (world.ids.workspaces["acme/private"], None, None, None),
        "clusters/default": (None, cluster, None, None),
        "events?workspace=research": (research, None, None, None),
        "events?cluster=default&machine=gpu-1": (None, cluster, world.ids.machines["gpu-1"], None),
        "usage?workspace=private": (world.ids.workspaces["acme/private"], None, None, None),
        "clusters/absent": (None, None, None, None),
        **{f"clusters/default/nodes/{m}": (None, cluster, world.ids.machines[m], None) for m in ("gpu-1", "gpu-2")},
        **{
            f"workspaces/research/compute-clusters/on-{m}": (research, None, None, world.ids.workloads[f"on-{m}"])
            for m in ("gpu-1", "gpu-2")
        },
    }
    for path in subjects:
        assert operator.get(f"/api/v1/orgs/acme/{path}").status_code in (200, 404)
    found = {
        row["data"]["path"].removeprefix("/api/v1/orgs/acme/"): tuple(
            row[f"{kind}_id"] for kind in ("workspace", "cluster", "machine", "workload")
        )
        for row in traced(world)
    }
    assert found == subjects
    mine = world.client("owner").get("/api/v1/orgs/acme/audit", params={"workspace": "private"}).json()["items"]
    assert [one["data"]["path"].rpartition("/")[2] for one in mine] == ["usage?workspace=private", "machines"]


def test_a_path_that_is_long_or_does_not_show_is_kept_short_and_legible(world: World) -> None:
    begin(world)
    for name in ("%1B[31m" + "x" * 4_000 + "y", "%1B[31m" + "x" * 4_000 + "z"):
        assert world.client("operator").get(f"/api/v1/orgs/acme/clusters/{name}").status_code == 404
    for path in paths(world):
        assert len(path) < 320 and path.isprintable() and "\\u001b[31mxxx" in path
    assert len(paths(world)) == 2


def test_a_look_for_what_is_not_there_leaves_its_trace_too(world: World) -> None:
    begin(world)
    assert world.client("operator").get("/api/v1/orgs/acme/clusters/absent").status_code == 404
    assert uses(world) == ["GET /api/v1/orgs/{org}/clusters/{cluster}"]


def test_two_who_look_at_once_leave_one_trace(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(6)
    begin(world)

    def look(_: int) -> int:
        start.wait()
        return world.client("operator").get("/api/v1/orgs/acme/clusters").status_code

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(look, range(6))) == {200}
    assert len(uses(world)) == 1


def test_nothing_is_shown_that_could_not_be_traced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(world)

    def full(_door: Door, _seen: object) -> None:
        raise Refusal("UNAVAILABLE", "The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(Door, "_trace", full)
        assert world.client("operator").get("/api/v1/orgs/acme/clusters").status_code == 503
    assert world.client("operator").get("/api/v1/orgs/acme/clusters").status_code == 200
    assert len(uses(world)) == 1


def test_a_look_never_opens_a_transaction_that_writes(world: World) -> None:
    begin(world)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "app": world.app,
        "state": {"request_id": "r"},
    }
    token = f"Bearer {world.tokens['operator']}".encode()
    asked = Request({**scope, "headers": [(b"authorization", token)], "path_params": {"org": "acme"}, "client": None})
    door = Door(asked, "/api/v1/orgs/{org}/clusters")
    with door.read() as ctx:
        assert ctx.look
    with pytest.raises(Refusal) as refused, door.write():
        pass
    assert refused.value.code == "FORBIDDEN"


def test_what_the_operator_may_read_anyhow_is_no_use_of_it(world: World) -> None:
    begin(world)
    for path in (PATH, "/api/v1/orgs", "/api/v1/site/clusters"):
        assert world.client("operator").get(path).status_code == 200
    assert uses(world) == []


def test_a_member_leaves_no_trace(world: World) -> None:
    begin(world)
    world.client("admin").get("/api/v1/orgs/acme/clusters")
    assert uses(world) == []


def test_an_event_stream_ends_when_the_owner_ends_the_look(world: World) -> None:
    with listening(world) as site:
        look = begin(world)
        listener = Listener(site, world.tokens["operator"])
        try:
            record(world, n=1)
            eventually(lambda: listener.numbers == [1])
            assert world.client("owner").delete(f"{PATH}/{look['id']}").status_code == 204
            record(world, n=2)
            assert listener.ended.wait(DEADLINE_S)
            assert listener.numbers == [1]
        finally:
            listener.join()
    assert uses(world) == ["GET /api/v1/orgs/{org}/events/stream"]


# --- the door


def test_a_look_is_begun_listed_and_ended_over_http(world: World) -> None:
    made = begin(world, ttl_seconds=60)
    assert (made["operator"], made["reason"], made["live"]) == ("operator", "ticket 7", True)
    assert made["expires_at"] == "2026-03-01T12:01:00Z"
    for who in ("owner", "admin", "operator"):
        assert world.client(who).get(PATH).json() == {"items": [made], "next_page_token": None}
    again = world.client("operator").post(PATH, json={"reason": "again"})
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    for _ in range(2):
        assert world.client("operator").delete(f"{PATH}/{made['id']}").status_code == 204
    assert world.client("admin").get(PATH).json()["items"][0]["live"] is False


def test_an_hour_unless_asked_and_the_same_key_begins_one(world: World) -> None:
    headers = {"Idempotency-Key": "k"}
    first, again = (world.client("operator").post(PATH, json={"reason": "x"}, headers=headers).json() for _ in range(2))
    assert first == again
    assert first["expires_at"] == "2026-03-01T13:00:00Z"


@pytest.mark.parametrize(
    "body",
    [{}, {"reason": ""}, {"reason": 7}, {"reason": "x", "ttl_seconds": 59}, {"reason": "x", "ttl_seconds": "60"}],
)
def test_a_bad_body_is_refused(world: World, body: dict[str, Any]) -> None:
    answer = world.client("operator").post(PATH, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_without_it_the_refusal_says_how_to_look(world: World) -> None:
    answer = world.client("operator").get("/api/v1/orgs/acme/clusters")
    assert answer.status_code == 403
    assert "corral site break-glass" in answer.json()["message"]
    assert "break-glass" not in world.client("operator").delete("/api/v1/orgs/acme/clusters/default").json()["message"]
