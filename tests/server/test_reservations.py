"""Reservations and placement labels over HTTP: shapes, statuses, pages, dry runs (spec 10)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Clock
from tests.live_server import eventually
from tests.world import World

CLUSTER = "/api/v1/orgs/acme/clusters/default"
PATH = f"{CLUSTER}/reservations"
WINDOW = {"start": "2026-03-01T14:00:00+01:00", "end": "2026-03-01T16:00:00.5Z"}


def make(world: World, **given: Any) -> dict[str, Any]:
    answer = world.client("admin").post(PATH, json={**WINDOW, **given})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_reservation_is_answered_in_utc(world: World) -> None:
    world.add_machine("m", pool="h100")
    made = make(world, nodes=["m"], pool={"pool": "h100"}, workspaces=["research"], reason="course")
    assert {key: value for key, value in made.items() if key != "id"} == {
        "pool": {"pool": "h100"},
        "nodes": ["m"],
        "machines": 1,
        "start": "2026-03-01T13:00:00Z",
        "end": "2026-03-01T16:00:00.500000Z",
        "workspaces": ["research"],
        "reason": "course",
        "state": "upcoming",
        "created_by": "admin",
        "created_at": "2026-03-01T12:00:00Z",
    }
    shown = world.client("member").get(f"{PATH}/{made['id']}").json()
    assert shown["reservation"] == made
    assert shown["effect"] == {
        "machines": ["m"],
        "machines_left_out": 0,
        "goes_on": [],
        "goes_on_left_out": 0,
        "kept_out": [],
        "kept_out_left_out": 0,
    }


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({}, 400, "INVALID_RESERVATION"),
        ({"nodes": [], "pool": None}, 400, "INVALID_RESERVATION"),
        ({"pool": {"rack": "r1"}}, 400, "INVALID_RESERVATION"),
        ({"pool": {"pool": "a", "rack": "r1"}}, 400, "INVALID_RESERVATION"),
        ({"nodes": ["m"], "end": "2026-03-01T13:00:00Z"}, 400, "INVALID_RESERVATION"),
        ({"nodes": ["m"], "end": "2026-03-01T12:30:00Z"}, 400, "INVALID_RESERVATION"),
        ({"nodes": ["m"], "start": "2026-02-01T00:00:00Z", "end": "2026-03-01T12:00:00Z"}, 400, "INVALID_RESERVATION"),
        ({"nodes": ["m"], "workspaces": ["absent"]}, 404, "WORKSPACE_NOT_FOUND"),
        ({"nodes": ["absent"]}, 404, "NODE_NOT_FOUND"),
        ({"nodes": ["m"], "start": "2026-03-01T13:00:00"}, 400, "INVALID_REQUEST"),
        ({"nodes": ["m"], "start": 1772366400}, 400, "INVALID_REQUEST"),
        ({"nodes": "m"}, 400, "INVALID_REQUEST"),
        ({"nodes": ["m"], "labels": {}}, 400, "INVALID_REQUEST"),
        ({"nodes": ["m"], "reason": "a\u202eb"}, 400, "INVALID_REQUEST"),
        ({"pool": {"pool": 7}}, 400, "INVALID_REQUEST"),
    ],
)
def test_what_is_no_reservation_has_its_status_and_code(
    world: World, given: dict[str, Any], status: int, code: str
) -> None:
    world.add_machine("m")
    for params in ({}, {"dry_run": "true"}):
        answer = world.client("admin").post(PATH, json={**WINDOW, **given}, params=params)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_conflict_is_409_and_names_the_other(world: World) -> None:
    world.add_machine("m")
    other = make(world, nodes=["m"])
    answer = world.client("admin").post(PATH, json={**WINDOW, "nodes": ["m"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "RESERVATION_CONFLICT")
    assert other["id"] in answer.json()["message"]
    (told,) = answer.json()["details"]["reservations"]
    assert {key: told[key] for key in ("id", "start", "end")} == {key: other[key] for key in ("id", "start", "end")} | {
        "end": "2026-03-01T16:00:00.500000Z"
    }


def test_the_same_idempotency_key_makes_one(world: World) -> None:
    world.add_machine("m")
    admin, headers = world.client("admin"), {"Idempotency-Key": "k"}
    answers = [admin.post(PATH, json={**WINDOW, "nodes": ["m"]}, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert admin.post(PATH, json={**WINDOW, "pool": {"pool": "x"}}, headers=headers).status_code == 422


def test_a_dry_run_tells_and_changes_nothing(world: World) -> None:
    world.add_machine("m", pool="h100")
    world.add_workload("dev", "m", gpu_count=1)
    other = make(world, nodes=["m"])
    answer = world.client("admin").post(PATH, json={**WINDOW, "pool": {"pool": "h100"}}, params={"dry_run": "true"})
    told = answer.json()
    assert (answer.status_code, told["dry_run"], told["pool"]) == (200, True, {"pool": "h100"})
    assert told["effect"] == {
        "machines": ["m"],
        "machines_left_out": 0,
        "goes_on": [
            {
                "machine": "m",
                "workspace": "research",
                "name": "dev",
                "kind": "compute_cluster",
                "state": "active",
                "gpus": 1,
                "must_end_by": None,
            }
        ],
        "goes_on_left_out": 0,
        "kept_out": ["research"],
        "kept_out_left_out": 0,
    }
    assert [one["id"] for one in told["conflicts"]] == [other["id"]]
    gone = world.client("admin").delete(f"{PATH}/{other['id']}", params={"dry_run": "true"}).json()
    assert (gone["dry_run"], gone["reservation"]["id"], gone["effect"]["kept_out"]) == (True, other["id"], ["research"])
    assert [one["id"] for one in world.client("member").get(PATH).json()["items"]] == [other["id"]]


def test_reservations_are_listed_in_pages_and_filtered(world: World, clock: Clock) -> None:
    world.add_machine("m")
    world.add_machine("n", pool="h100")
    made = [
        make(world, nodes=["m"]),
        make(world, pool={"pool": "h100"}, start="2026-03-01T14:00:00Z"),
        make(world, nodes=["m"], start="2026-03-02T00:00:00Z", end="2026-03-03T00:00:00Z"),
    ]
    member, found, token = world.client("member"), [], None
    while True:
        page = member.get(PATH, params={"page_size": 1, **({"page_token": token} if token else {})}).json()
        found += [one["id"] for one in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert found == [one["id"] for one in made]
    for params, expected in (
        ({"machine": "m"}, [made[0], made[2]]),
        ({"pool": "h100"}, [made[1]]),
        ({"state": "past"}, []),
        ({"state": "upcoming"}, made),
    ):
        listed = member.get(PATH, params=params).json()["items"]
        assert [one["id"] for one in listed] == [one["id"] for one in expected]
    clock.forward(5 * 3600)
    assert [one["id"] for one in member.get(PATH, params={"state": "past"}).json()["items"]] == [
        made[1]["id"],
        made[0]["id"],
    ]
    for params in ({"state": "over"}, {"page_token": "bm9uZQ"}, {"machines": "m"}):
        assert member.get(PATH, params=params).status_code == 400
    assert member.get(PATH, params={"machine": "absent"}).status_code == 404


def test_only_admins_make_and_remove_them(world: World) -> None:
    world.add_machine("m")
    made = make(world, nodes=["m"])
    for who, status in (("member", 403), ("rival", 404), (None, 401)):
        assert world.client(who).post(PATH, json={**WINDOW, "nodes": ["m"]}).status_code == status
        assert world.client(who).delete(f"{PATH}/{made['id']}").status_code == status
    gone = world.client("admin").delete(f"{PATH}/{made['id']}")
    assert (gone.status_code, gone.json()["dry_run"], gone.json()["reservation"]) == (200, False, made)
    assert world.client("admin").delete(f"{PATH}/{made['id']}").status_code == 404
    assert world.client("admin").get(f"{PATH}/nonsense").status_code == 404


# --- beside machines


def test_a_machine_says_for_whom_it_is_reserved_and_until_when(world: World, clock: Clock) -> None:
    world.add_machine("m")
    make(world, nodes=["m"], workspaces=["private"], reason="course")
    machines, nodes = "/api/v1/orgs/acme/workspaces/research/machines", f"{CLUSTER}/nodes"

    def seen() -> tuple[str, str, str, str]:
        (offered,) = world.client("member").get(machines).json()["items"]
        (listed,) = world.client("admin").get(nodes).json()["items"]
        return offered["status"], offered["reserved"], listed["closed"], listed["reserved"]

    said = "reserved for private from 2026-03-01 13:00 to 2026-03-01 16:00 UTC: course"
    assert seen() == (
        "available",
        f"{said}; until then only work whose time limit, with 10 s to stop, ends before that",
        "",
        "",
    )
    shown = world.client("admin").get(f"{nodes}/m").json()
    assert [(one["whom"], one["start"], one["reason"]) for one in shown["reservations"]] == [
        ("private", "2026-03-01T13:00:00Z", "course")
    ]
    clock.forward(3600)
    said = "reserved for private until 2026-03-01 16:00 UTC: course"
    assert seen() == (said, "", "", said)
    clock.forward(4 * 3600)
    assert seen() == ("available", "", "", "")


def test_a_machine_reserved_for_nobody_takes_no_new_work(world: World, clock: Clock) -> None:
    world.add_machine("m")
    make(world, nodes=["m"])
    clock.forward(3600)
    shown = world.client("admin").get(f"{CLUSTER}/nodes/m").json()["machine"]
    assert shown["closed"] == shown["reserved"] == "reserved for nobody until 2026-03-01 16:00 UTC"


def test_those_it_is_for_see_it_as_available(world: World, clock: Clock) -> None:
    world.add_machine("m")
    make(world, nodes=["m"], workspaces=["research"])
    clock.forward(3600)
    (offered,) = world.client("member").get("/api/v1/orgs/acme/workspaces/research/machines").json()["items"]
    assert (offered["status"], offered["reserved"]) == ("available", "")


def test_what_waits_because_of_a_reservation_says_so_and_until_when_and_goes_on_then(
    world: World, clock: Clock
) -> None:
    world.add_machine("m")
    compute = "/api/v1/orgs/acme/workspaces/research/compute-clusters"
    with world.running():
        make(world, nodes=["m"], reason="fans")
        member = world.client("member")
        refused = member.post(compute, json={"name": "now"}).json()
        assert refused["code"] == "NO_CAPACITY"
        said = "reserved for nobody from 2026-03-01 13:00 to 2026-03-01 16:00 UTC: fans"
        assert said in refused["details"]["machines"][0]["reason"]
        short = member.post(compute, json={"name": "short", "time_limit_seconds": 3590})
        assert (short.status_code, short.json()["machine"]) == (201, "m")
        waits = member.post(compute, json={"name": "dev", "wait": True}).json()
        assert waits["machine"] is None and said in waits["reason"]

        clock.forward(3600)
        until = "m: reserved for nobody until 2026-03-01 16:00 UTC: fans"
        eventually(lambda: member.get(f"{compute}/dev").json()["reason"] == until)
        assert until[3:] in member.post(compute, json={"name": "now"}).json()["message"]

        clock.forward(3 * 3600 + 1)
        eventually(lambda: member.get(f"{compute}/dev").json()["machine"] is not None)


def test_what_waits_goes_on_when_the_reservation_is_removed(world: World, clock: Clock) -> None:
    world.add_machine("m")
    compute = "/api/v1/orgs/acme/workspaces/research/compute-clusters"
    with world.running():
        made = make(world, nodes=["m"])
        clock.forward(3600)
        member = world.client("member")
        assert member.post(compute, json={"name": "dev", "wait": True}).json()["machine"] is None
        assert world.client("admin").delete(f"{PATH}/{made['id']}").status_code == 200
        eventually(lambda: member.get(f"{compute}/dev").json()["machine"] is not None)


# --- placement labels


def test_labels_are_put_with_who_can_use_the_machine_then(world: World) -> None:
    world.add_machine("m", pool="h100")
    path = f"{CLUSTER}/nodes/m/placement"
    before = {"pool": "h100", "site": "", "rack": "", "fabric": ""}
    expected: dict[str, Any] = {
        "name": "m",
        "dry_run": True,
        "before": before,
        "after": {**before, "rack": "r1"},
        "workspaces_before": ["research"],
        "workspaces_before_left_out": 0,
        "workspaces_after": ["research"],
        "workspaces_after_left_out": 0,
        "stays": [],
        "reservations": [],
    }
    admin, labels = world.client("admin"), {"rack": "r1"}
    assert admin.put(path, json=labels, params={"dry_run": "true"}).json() == expected
    assert admin.get(f"{CLUSTER}/nodes/m").json()["machine"]["rack"] == ""
    assert admin.put(path, json=labels).json() == {**expected, "dry_run": False}
    shown = admin.get(f"{CLUSTER}/nodes/m").json()["machine"]
    assert (shown["pool"], shown["rack"]) == ("h100", "r1")
    assert admin.put(path, json={"pool": ""}).json()["after"] == {**expected["after"], "pool": ""}


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        ({"pool": "a b"}, "INVALID_LABEL"),
        ({"rack": "x" * 64}, "INVALID_LABEL"),
        ({"owner": "me"}, "INVALID_REQUEST"),
        ({"pool": 7}, "INVALID_REQUEST"),
        ({"pool": None}, "INVALID_REQUEST"),
        ([], "INVALID_REQUEST"),
    ],
)
def test_bad_labels_are_400(world: World, labels: Any, code: str) -> None:
    world.add_machine("m")
    answer = world.client("admin").put(f"{CLUSTER}/nodes/m/placement", json=labels)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
