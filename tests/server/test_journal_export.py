"""Events and audit as files: everything once, oldest first, nothing of others, and no formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.events import Entry, Subject
from corral.server import csv_cells
from corral.server.routes import journal_export
from corral.store.engine import Database
from corral.store.transaction import Actor
from tests.world import World

EVENTS = "/api/v1/orgs/acme/events/export"
AUDIT = "/api/v1/orgs/acme/audit/export"


@pytest.fixture
def world(db: Database, tmp_path: Path) -> World:
    return World(db, tmp_path)


def record(world: World, type: str = "workload.active", workspace: str = "acme/research", **data: Any) -> None:
    subject = Subject(org=world.ids.orgs[workspace.partition("/")[0]], workspace=world.ids.workspaces[workspace])
    with world.db.write() as tx:
        tx.record(Entry(type, subject, data), Actor("user", None, "ada", "192.0.2.9", "r1"))


def numbers(text: str) -> list[int]:
    return [json.loads(line)["data"]["n"] for line in text.splitlines()]


def test_an_export_holds_everything_once_and_oldest_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_export, "BATCH", 4)
    for n in range(11):
        record(world, n=n)
    answer = world.client("admin").get(EVENTS)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert numbers(answer.text) == list(range(11))


def test_an_export_obeys_filters_and_who_asks(world: World) -> None:
    record(world, n=1)
    record(world, n=2, type="workload.failed")
    record(world, n=3, workspace="acme/private")
    record(world, n=4, workspace="rival/research")
    assert numbers(world.client("admin").get(EVENTS, params={"type": "workload.failed"}).text) == [2]
    assert numbers(world.client("member").get(EVENTS).text) == [1, 2]
    assert numbers(world.client("outsider").get(EVENTS).text) == []
    assert world.client("member").get(AUDIT).status_code == 403
    assert world.client("rival").get(EVENTS).status_code == 404


def test_an_export_of_the_audit_says_from_where(world: World) -> None:
    record(world, n=1, type="workload.created")
    (row,) = [json.loads(line) for line in world.client("admin").get(AUDIT).text.splitlines()]
    assert (row["actor"], row["address"], row["request_id"]) == ("ada", "192.0.2.9", "r1")
    assert "address" not in json.loads(world.client("admin").get(EVENTS).text)


def test_a_csv_has_a_row_for_each_entry(world: World) -> None:
    record(world, n=1, name='=cmd|"x"\n')
    text = world.client("admin").get(EVENTS, params={"format": "csv"}).text
    (row,) = csv.DictReader(io.StringIO(text))
    assert json.loads(row["data"]) == {"n": 1, "name": '=cmd|"x"\n'}
    assert row["actor"] == "ada" and row["type"] == "workload.active"


def test_an_unknown_format_is_refused(world: World) -> None:
    assert world.client("admin").get(EVENTS, params={"format": "xlsx"}).json()["code"] == "INVALID_REQUEST"


def test_a_person_has_few_exports_at_once_and_gets_the_place_back(world: World) -> None:
    client = world.client("admin")
    for _ in range(5):
        assert client.get(EVENTS).status_code == 200
    places = world.app.state.exporting
    for _ in range(2):
        places.take(world.ids.users["admin"])
    assert client.get(EVENTS).status_code == 429
    assert world.client("owner").get(EVENTS).status_code == 200


@given(st.lists(st.one_of(st.text(), st.integers(), st.none()), min_size=1, max_size=4))
def test_no_cell_begins_a_formula_and_nothing_is_lost(values: list[object]) -> None:
    text = csv_cells.line(values).decode()
    (read,) = csv.reader(io.StringIO(text, newline=""))
    for value, cell in zip(values, read, strict=True):
        plain = "" if value is None else str(value).encode("utf-8", "replace").decode()
        assert cell in (plain, f"'{plain}")
        if isinstance(value, str):
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize("path", ["events", "clusters", "clusters/default/nodes"])
def test_a_filter_that_does_not_exist_is_refused_not_ignored(world: World, path: str) -> None:
    answer = world.client("admin").get(f"/api/v1/orgs/acme/{path}", params={"staet": "down"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert "staet" in answer.json()["message"]


def test_a_mistyped_dry_run_changes_nothing(world: World) -> None:
    world.add_machine("m")
    node = "/api/v1/orgs/acme/clusters/default/nodes/m"
    assert world.client("admin").delete(node, params={"dryrun": "true"}).status_code == 400
    assert world.client("admin").get(node).status_code == 200


def test_events_of_a_removed_machine_are_found_by_its_id(world: World) -> None:
    id = world.add_machine("m")
    world.client("admin").delete("/api/v1/orgs/acme/clusters/default/nodes/m")
    events = world.client("admin").get("/api/v1/orgs/acme/events", params={"machine": id}).json()["items"]
    assert [one["type"] for one in events] == ["cluster.node.removed"]
    assert world.client("rival").get("/api/v1/orgs/rival/events", params={"machine": id}).status_code in (400, 404)


def test_the_sites_own_audit_is_filtered_too(world: World) -> None:
    operator = world.client("operator")
    operator.patch("/api/v1/site", json={"contact": "ops"})
    operator.post("/api/v1/orgs", json={"slug": "fresh", "name": "Fresh"})
    found = operator.get("/api/v1/site/audit", params={"type": "site.*", "actor": "operator"}).json()["items"]
    assert [one["type"] for one in found] == ["site.changed"]
    assert operator.get("/api/v1/site/audit", params={"actor": "nobody"}).json()["items"] == []
