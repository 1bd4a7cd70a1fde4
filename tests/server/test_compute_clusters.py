"""Compute clusters through the API (spec 20): create, list, show, keys, logs, explain, terminate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert

from corral.domain.allocations import Seen
from corral.server.app import EXPLAINS_OF_A_USER
from corral.store.tables.users import ssh_keys
from corral.usecases.context import new_id
from tests.placing import allocation, report, saying, wanted, workload
from tests.world import World

BASE = "/api/v1/orgs/acme/workspaces/research"
CLUSTERS = f"{BASE}/compute-clusters"


@pytest.fixture
def world_running(world: World) -> Iterator[World]:
    world.add_machine("gpu-1", gpu_count=4)
    with world.running():
        yield world


def create(world: World, body: dict[str, Any], who: str = "member", **kwargs: Any) -> Any:
    return world.client(who).post(CLUSTERS, json=body, **kwargs)


def add_key(world: World, who: str, name: str) -> str:
    with world.db.write() as tx:
        id = new_id(tx.now)
        row = {"id": id, "user_id": world.ids.users[who], "name": name, "created_at": tx.now}
        tx.run(insert(ssh_keys).values(**row, public_key=f"ssh-ed25519 {who}-{name}", fingerprint=f"SHA256:{id}"))
    return id


def test_a_created_cluster_is_placed_listed_and_shown(world_running: World) -> None:
    made = create(world_running, {"name": "dev", "gpus": 1})
    assert made.status_code == 201
    shown = world_running.client("lead").get(f"{CLUSTERS}/dev").json()
    expected = {"machine": "gpu-1", "gpu_model": "H100", "gpus": 1, "gpu_uuids": ["GPU-gpu-1-0"], "vcpu": 4}
    assert expected.items() <= made.json().items()
    assert {**shown, "history": None} == {**made.json(), "history": None}
    assert [entry["type"] for entry in shown["history"]] == ["workload.created", "workload.placed"]
    assert [one["name"] for one in world_running.client("admin").get(CLUSTERS).json()["items"]] == ["dev"]
    assert world_running.client("member").get(f"{CLUSTERS}/{shown['id']}").json()["name"] == "dev"


def test_no_capacity_is_409_with_a_reason_for_each_machine(world_running: World) -> None:
    answer = create(world_running, {"name": "dev", "gpus": 5})
    assert (answer.status_code, answer.json()["code"]) == (409, "NO_CAPACITY")
    assert answer.json()["details"]["machines"] == [{"name": "gpu-1", "reason": "4 of 4 GPUs free, 5 asked"}]


def test_the_same_idempotency_key_makes_one_cluster(world_running: World) -> None:
    headers = {"Idempotency-Key": "k1"}
    first, again = (create(world_running, {"name": "dev"}, headers=headers) for _ in range(2))
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    other = create(world_running, {"name": "dev2"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "dev", "gpus": "1"}, "gpus"),
        ({"name": "dev", "gpus": -1}, "gpus"),
        ({"name": "dev", "vcpu": 0}, "vcpu"),
        ({"name": "dev", "ram_gib": 1.5}, "ram_gib"),
        ({"name": "dev", "nodes": 2}, "nodes"),
        ({"name": "dev", "image": "dir:/etc"}, "image"),
        ({"name": "dev", "ssh_keys": ["a\x00"]}, "ssh_keys"),
        ({}, "name"),
    ],
)
def test_a_wrong_body_is_400_naming_the_field(world_running: World, body: dict[str, Any], field: str) -> None:
    answer = create(world_running, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["details"]["field"] == field


def test_strangers_get_404_and_a_token_without_the_scope_403(world_running: World) -> None:
    assert create(world_running, {"name": "dev"}, "rival").status_code == 404
    assert create(world_running, {"name": "dev"}, "outsider").status_code == 404
    reader = world_running.client(token=world_running.token("member", ["compute:read"]))
    assert reader.post(CLUSTERS, json={"name": "dev"}).status_code == 403
    audit = world_running.client("owner").get("/api/v1/orgs/acme/audit").json()["items"]
    assert audit[0]["type"] == "access.denied"


def test_terminate_is_for_its_maker_a_lead_or_an_admin(world_running: World) -> None:
    create(world_running, {"name": "dev", "gpus": 1}, "lead")
    assert world_running.client("member").delete(f"{CLUSTERS}/dev").status_code == 403
    dry = world_running.client("admin").delete(f"{CLUSTERS}/dev?dry_run=true").json()
    assert (dry["dry_run"], dry["compute_cluster"]["stop_asked_at"]) == (True, None)
    assert dry["stops"][0].startswith("everything that runs inside 'dev' on gpu-1")
    first, again = (world_running.client("admin").delete(f"{CLUSTERS}/dev") for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert allocation(world_running, "dev")["generation"] == 2
    report(world_running, "gpu-1", [saying(world_running, "dev", Seen.GONE)])
    assert world_running.client("member").get(CLUSTERS).json()["items"] == []
    ended = world_running.client("member").get(f"{CLUSTERS}?include_ended=true").json()["items"]
    assert [(one["name"], one["state"]) for one in ended] == [("dev", "terminated")]
    assert create(world_running, {"name": "dev"}).status_code == 201


def test_all_keys_of_the_caller_are_attached_unless_some_are_named(world_running: World) -> None:
    for name in ("laptop", "desk"):
        add_key(world_running, "member", name)
    create(world_running, {"name": "both"})
    create(world_running, {"name": "one", "ssh_keys": ["desk"]})
    create(world_running, {"name": "none", "ssh_keys": []})
    keys = {name: set(one.authorized_keys) for name, one in wanted(world_running, "gpu-1").items()}
    assert keys["both"] == {"ssh-ed25519 member-laptop", "ssh-ed25519 member-desk"}
    assert keys["one"] == {"ssh-ed25519 member-desk"}
    assert keys["none"] == set()


def test_keys_are_attached_to_and_detached_from_what_runs(world_running: World) -> None:
    add_key(world_running, "member", "laptop")
    add_key(world_running, "lead", "laptop")
    create(world_running, {"name": "dev", "ssh_keys": []})
    path = f"{CLUSTERS}/dev/ssh-keys"
    world_running.client("member").put(path, json={"keys": ["laptop"]})
    attached = world_running.client("lead").put(path, json={"keys": ["laptop"]}).json()["items"]
    assert [key["user"] for key in attached] == ["lead", "member"]
    assert allocation(world_running, "dev")["generation"] == 3
    theirs = next(key["id"] for key in attached if key["user"] == "lead")
    refused = world_running.client("member").request("DELETE", path, json={"keys": [theirs]})
    assert refused.status_code == 403
    left = world_running.client("admin").request("DELETE", path, json={"keys": [theirs]}).json()["items"]
    assert [key["user"] for key in left] == ["member"]


def test_the_key_of_somebody_taken_out_of_the_workspace_opens_nothing_any_more(world_running: World) -> None:
    add_key(world_running, "member", "laptop")
    create(world_running, {"name": "dev"})
    assert len(wanted(world_running, "gpu-1")["dev"].authorized_keys) == 1
    gone = world_running.client("admin").delete(f"{BASE}/members/member")
    assert gone.status_code < 300, gone.text
    told = wanted(world_running, "gpu-1")["dev"]
    assert (told.authorized_keys, told.generation) == ((), 2)


def test_what_waits_says_why_and_ends_at_once(world_running: World) -> None:
    made = create(world_running, {"name": "big", "gpus": 8, "wait": True}).json()
    assert (made["state"], made["step"], made["queued"]) == ("provisioning", "waiting", True)
    assert made["reason"] == "gpu-1: 4 of 4 GPUs free, 8 asked"
    world_running.client("member").delete(f"{CLUSTERS}/big")
    assert workload(world_running, "big")["state"] == "terminated"


def test_a_person_asks_only_so_much_at_once_where_something_would_go(world_running: World) -> None:
    explaining, member = world_running.app.state.explaining, world_running.ids.users["member"]
    explain = f"{BASE}/placements/explain"
    with contextlib.ExitStack() as held:
        for _ in range(EXPLAINS_OF_A_USER):
            held.enter_context(explaining.held(member))
        answer = world_running.client("member").post(explain, json={"gpus": 1})
        assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
        assert world_running.client("lead").post(explain, json={"gpus": 1}).status_code == 200
    assert world_running.client("member").post(explain, json={"gpus": 1}).status_code == 200
    assert not explaining._taken


def test_explain_names_each_machine_and_creates_nothing(world_running: World) -> None:
    answer = world_running.client("member").post(f"{BASE}/placements/explain", json={"gpus": 1}).json()
    assert answer["machine"] == "gpu-1"
    assert answer["machines"] == [{"machine": "gpu-1", "takes": True, "reason": None}]
    assert world_running.client("member").get(CLUSTERS).json()["items"] == []


def test_logs_of_provisioning_and_of_a_container_that_ended(world_running: World) -> None:
    create(world_running, {"name": "dev", "gpus": 1})
    line = saying(world_running, "dev", Seen.PREPARING, log=[(1, "pulling")])
    report(world_running, "gpu-1", [line])
    failed = saying(world_running, "dev", Seen.FAILED, message="no", log_tail="one\ntwo")
    report(world_running, "gpu-1", [failed])
    logs = f"{CLUSTERS}/dev/logs"
    client = world_running.client("member")
    assert client.get(logs).json() == {"kind": "provisioning", "lines": ["pulling"]}
    assert client.get(f"{logs}?kind=container").json()["lines"] == ["one", "two"]
    assert client.get(f"{logs}?kind=nonsense").status_code == 400


def test_a_page_costs_as_many_questions_as_one_row(world_running: World) -> None:
    counted: list[str] = []

    def count(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        # The request's, not those of the site's own loops (of which the journal's tailer uses the same threads).
        theirs = threading.current_thread().name.startswith("AnyIO worker") and "journal.seq >" not in statement
        if theirs and statement.startswith("SELECT"):
            counted.append(statement)

    def questions() -> int:
        counted.clear()
        assert world_running.client("member").get(CLUSTERS).status_code == 200
        return len(counted)

    engine = world_running.db._reader
    event.listen(engine, "before_cursor_execute", count)
    try:
        create(world_running, {"name": "w0"})
        questions()  # the first one on a connection asks more
        one = questions()
        assert one > 0
        for number in range(1, 5):
            create(world_running, {"name": f"w{number}"})
        assert questions() == one
    finally:
        event.remove(engine, "before_cursor_execute", count)


def test_pages_follow_one_another_without_a_gap(world_running: World) -> None:
    names = [f"w{number}" for number in range(5)]
    for name in names:
        create(world_running, {"name": name})
    client, seen, token = world_running.client("member"), list[str](), ""
    while True:
        page = client.get(f"{CLUSTERS}?page_size=2" + (f"&page_token={token}" if token else "")).json()
        seen += [one["name"] for one in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert sorted(seen) == names
