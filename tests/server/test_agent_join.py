"""The door through which machines join: real sockets, lost answers, hostile bodies (spec 40; security cases 4)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import func, select

from corral.server.rate_limit import RateLimit
from corral.server.routes import agent_join
from corral.store.engine import Database
from corral.store.tables.clusters import join_tokens
from corral.store.tables.machines import machines
from tests.live_server import Site, agent_key, live_server
from tests.world import World

PATH = "/api/v1/agent/join"


def token(world: World, **body: Any) -> str:
    answer = world.client("admin").post("/api/v1/orgs/acme/clusters/default/enrollment-tokens", json=body)
    assert answer.status_code == 201
    return str(answer.json()["token"])


def ask(token: str, key: str, **more: Any) -> dict[str, Any]:
    return {"token": token, "key": key, "hostname": "gpu-1", "protocol": 1, "release": "0.1.0", **more}


def send(world: World, body: Any) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = world.client().post(PATH, content=content)
    return answer.status_code, answer.json()


def test_a_machine_joins_and_is_told_who_it_is(world: World) -> None:
    status, answer = send(world, ask(token(world), agent_key()))
    assert status == 200
    assert {key: answer[key] for key in ("name", "org", "cluster")} == {
        "name": "gpu-1",
        "org": "acme",
        "cluster": "default",
    }
    assert answer["machine"]
    assert answer["incarnation"]


def test_each_refusal_has_its_status(world: World) -> None:
    used, key = token(world), agent_key()
    send(world, ask(used, key))
    assert send(world, ask(used, agent_key()))[0] == 409
    assert send(world, ask("corj_x", agent_key()))[1]["code"] == "TOKEN_UNKNOWN"
    assert world.client("admin").delete("/api/v1/orgs/acme/clusters/default/nodes/gpu-1").status_code == 200
    status, answer = send(world, ask(used, key))
    assert (status, answer["code"]) == (410, "MACHINE_REMOVED")


BAD = [
    b"",
    b"\xff\xfe",
    b"not json",
    b"[]",
    b"null",
    b"{}",
    b"[" * 100_000,
    b'{"token":' * 20_000,
    json.dumps(ask("t", "k", protocol="1")).encode(),
    json.dumps(ask("t", "k", protocol=True)).encode(),
    json.dumps(ask("t", "k", hostname=["x"])).encode(),
    json.dumps(ask("t", "k")).replace("gpu-1", "\\ud800").encode(),
    json.dumps({**ask("t", "k"), "token": None}).encode(),
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_a_body_that_is_no_join_request_is_a_4xx_with_a_code(world: World, body: bytes) -> None:
    status, answer = send(world, body)
    assert (status, answer["code"]) == (400, "INVALID_REQUEST")
    assert answer["request_id"]


def test_a_huge_body_is_refused(world: World) -> None:
    status, answer = send(world, ask("t", "k", hostname="x" * 10_000_000))
    assert (status, answer["code"]) == (413, "TOO_LARGE")


def test_a_bad_key_is_refused_and_spends_nothing(world: World) -> None:
    fresh = token(world)
    assert send(world, ask(fresh, "0" * 63))[1]["code"] == "INVALID_REQUEST"
    assert send(world, ask(fresh, agent_key()))[0] == 200


def test_an_agent_older_than_every_protocol_is_told(world: World) -> None:
    status, answer = send(world, ask(token(world), agent_key(), protocol=0))
    assert (status, answer["code"]) == (426, "PROTOCOL_TOO_OLD")


def test_a_newer_agents_unknown_fields_are_ignored(world: World) -> None:
    assert send(world, ask(token(world), agent_key(), protocol=99, hat="red"))[0] == 200


def test_one_address_is_slowed_down_after_many_refusals(
    sqlite_db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_join, "BURST", 60)
    monkeypatch.setattr(agent_join, "PER_SECOND", 0.001)
    world = World(sqlite_db, tmp_path)
    fresh = token(world)
    used, key = token(world), agent_key()
    assert send(world, ask(used, key))[0] == 200
    for _ in range(60):
        assert send(world, ask("corj_x", agent_key()))[0] == 404
    for dead in ("corj_x", fresh[:-1] + ("A" if fresh[-1] != "A" else "B"), used):
        answer = world.client().post(PATH, json=ask(dead, agent_key()))
        assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
        assert int(answer.headers["Retry-After"]) >= 1
    assert send(world, ask(fresh, agent_key()))[0] == 200  # what machines share with others locks none out
    assert send(world, ask(used, key))[0] == 200


def test_a_slowed_address_may_go_on_after_the_time_it_is_told() -> None:
    now = [0.0]
    limit = RateLimit(3, 0.5, clock=lambda: now[0])
    for _ in range(3):
        assert limit.wait_s("a") == 0
        limit.spend("a")
    wait = limit.wait_s("a")
    assert wait == 2
    assert limit.wait_s("b") == 0
    now[0] += wait
    assert limit.wait_s("a") == 0


def test_addresses_are_not_remembered_without_bound() -> None:
    limit = RateLimit(1, 0.001, remembered=2, clock=lambda: 0.0)
    for address in ("a", "b", "c"):
        limit.spend(address)
    assert [limit.wait_s(address) > 0 for address in ("a", "b", "c")] == [False, True, True]


@pytest.fixture
def site(db: Database, world_on_both: World) -> Iterator[Site]:
    with live_server(db) as running:
        yield running


def exchange(site: Site, body: bytes, read: int | None) -> bytes:
    """Send a join; read that many bytes of its answer (None: all) and hang up."""
    place = urlsplit(site.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as conn:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        conn.sendall(head.encode() + body)
        got = b""
        while read is None or len(got) < read:
            part = conn.recv(4096 if read is None else read - len(got))
            if not part:
                break
            got += part
        return got


def test_a_join_whose_answer_is_cut_off_at_any_byte_is_made_again_as_the_same_machine(
    site: Site, world_on_both: World
) -> None:
    body = json.dumps(ask(token(world_on_both), agent_key())).encode()
    cut = exchange(site, body, 0)
    assert cut == b""
    whole = exchange(site, body, None)
    first = json.loads(whole.partition(b"\r\n\r\n")[2])
    for length in range(1, len(whole)):
        exchange(site, body, length)
    again = exchange(site, body, None)
    assert json.loads(again.partition(b"\r\n\r\n")[2]) == first
    with site.db.read() as tx:
        assert tx.scalar(select(func.count()).select_from(machines)) == 1
        used = tx.one(select(join_tokens))
    assert used is not None
    assert used["machine_id"] == first["machine"]


def test_a_request_cut_off_at_any_byte_makes_nothing(site: Site, world_on_both: World) -> None:
    body = json.dumps(ask(token(world_on_both), agent_key())).encode()
    place = urlsplit(site.url)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for length in range(0, len(body), 7):
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as conn:
            conn.sendall(head + body[:length])
    assert exchange(site, body, None).startswith(b"HTTP/1.1 200")
    with site.db.read() as tx:
        assert tx.scalar(select(func.count()).select_from(machines)) == 1
