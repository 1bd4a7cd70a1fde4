"""Usage over HTTP: groups in pages, totals, CSV (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import update

from corral.domain.errors import Refusal
from corral.domain.prices import PriceTable
from corral.server.door import page_token
from corral.server.places import Places
from corral.server.routes import usage as route
from corral.store.tables.workloads import allocations
from tests.metered import Held, hold, price
from tests.world import World

PATH = "/api/v1/orgs/acme/usage"
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def world(world: World) -> World:
    price(world, NOW - 9 * HOUR, PriceTable("EUR", {"H100": 2_000_000}, 0, 0, 0))
    hold(world, "train", Held(NOW - 3 * HOUR, NOW - HOUR, 2, "H100", 4, 2048, 0))
    hold(world, "chat", Held(NOW - HOUR, None, 1, "A100", 1, 0, 1, by="lead", workspace="acme/private"))
    return world


def get(world: World, who: str = "admin", path: str = PATH, **params: Any) -> Any:
    answer = world.client(who).get(path, params=params)
    assert answer.status_code == 200, answer.json()
    return answer.json()


def table(world: World, who: str = "admin", **params: Any) -> list[list[str]]:
    answer = world.client(who).get(PATH, params={"format": "csv", **params})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.reader(io.StringIO(answer.content.decode("utf-8"), newline="")))


def test_usage_is_told_by_workspace_this_month_unless_asked(world: World) -> None:
    found = get(world)
    assert (found["from"], found["to"], found["by"]) == ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z", ["workspace"])
    private, research = found["items"]
    assert (private["workspace"], research["workspace"]) == ("private", "research")
    assert research == {
        **dict.fromkeys(("user", "user_id", "workload", "workload_id", "model", "cluster", "cluster_id", "day")),
        "workspace": "research",
        "workspace_id": world.ids.workspaces["acme/research"],
        "gpu_seconds": 14400,
        "vcpu_seconds": 28800,
        "ram_mib_seconds": 2048 * 7200,
        "storage_mib_seconds": 0,
        "cost": [{"currency": "EUR", "amount": "8.00"}],
        "unpriced_gpu_seconds": 0,
        "unpriced_vcpu_seconds": 0,
    }
    assert (private["cost"], private["unpriced_gpu_seconds"]) == ([{"currency": "EUR", "amount": "0.00"}], 3600)
    assert (found["total"]["gpu_seconds"], found["total"]["unpriced_gpu_seconds"]) == (18000, 3600)


def test_groups_come_in_pages_and_the_total_on_the_first(world: World) -> None:
    by = [("by", name) for name in ("day", "workload", "user", "model", "cluster", "workspace")]
    query = [*by, ("page_size", "1"), ("from", "2026-02-28T00:00:00+01:00")]
    first = world.client("admin").get(PATH, params=query).json()
    rest = world.client("admin").get(PATH, params=[*query, ("page_token", first["next_page_token"])]).json()
    assert [one["workload"] for one in first["items"] + rest["items"]] == ["chat", "train"]
    assert (first["items"][0]["day"], first["items"][0]["user"], first["items"][0]["model"]) == (
        "2026-03-01",
        "lead",
        "A100",
    )
    assert first["total"] is not None
    assert (rest["total"], rest["next_page_token"]) == (None, None)


@pytest.mark.parametrize(
    "key",
    ["x", "[]", '["a"]', '["a",1]', '["a","\\u0000"]', '["a","\\ud800"]', '["a",null]', '{"a":1}', "[" * 5000, "7"],
)
def test_a_page_token_of_another_list_is_refused(world: World, key: str) -> None:
    answer = world.client("admin").get(PATH, params={"page_token": page_token(key)})
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "page_token"})


@pytest.mark.parametrize(
    "params",
    [
        {"by": "machine"},
        {"from": "2026-03-01"},
        {"from": "2026-03-02T00:00:00Z", "to": "2026-03-01T00:00:00Z"},
        {"from": "0001-01-01T00:00:00+14:00"},
        {"from": "2024-01-01T00:00:00Z"},
        {"by": "day", "from": "2025-09-01T00:00:00Z"},
        {"format": "xlsx"},
        {"since": "2026-03-01T00:00:00Z"},
    ],
)
def test_what_cannot_be_asked_is_refused(world: World, params: dict[str, str]) -> None:
    answer = world.client("admin").get(PATH, params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_the_end_of_time_is_now(world: World) -> None:
    assert get(world, to="9999-12-31T23:59:59-14:00")["to"] == "2026-03-01T12:00:00Z"


def test_members_get_their_own_and_ask_for_nobody_elses(world: World) -> None:
    assert [one["user"] for one in get(world, "member", by="user")["items"]] == ["member"]
    assert get(world, "outsider")["items"] == []
    assert get(world, "lead")["items"] == []  # what they made lies in a workspace that is not theirs
    refused = world.client("member").get(PATH, params={"user": "lead"})
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    assert world.client("member").get(PATH, params={"workspace": "private"}).status_code == 404
    assert world.client("rival").get(PATH).status_code == 404
    assert get(world, "rival", "/api/v1/orgs/rival/usage")["items"] == []


# -- as a file


def test_the_same_as_csv(world: World) -> None:
    head, *rows = table(world, by=["workload", "model"])
    assert head == [
        *("workload", "workload_id", "model", "gpu_seconds", "vcpu_seconds", "ram_mib_seconds", "storage_mib_seconds"),
        *("cost_EUR", "unpriced_gpu_seconds", "unpriced_vcpu_seconds"),
    ]
    chat, train = ({**dict(zip(head, row, strict=True)), "workload_id": ""} for row in rows)
    assert list(chat.values()) == ["chat", "", "A100", "3600", "3600", "0", "3600", "0.00", "3600", "0"]
    assert list(train.values()) == ["train", "", "H100", "14400", "28800", "14745600", "0", "8.00", "0", "0"]


def test_a_cell_of_csv_never_begins_a_formula(world: World) -> None:
    with world.db.write() as tx:
        tx.run(update(allocations).where(allocations.c.gpus == 1).values(gpu_model='=1+cmd|"x",\n2'))
    models = [row[0] for row in table(world, by="model")[1:]]
    assert models == ['\'=1+cmd|"x",\n2', "H100"]


def test_each_currency_has_a_column(world: World) -> None:
    price(world, NOW - 2 * HOUR, PriceTable("USD", {"*": 10_000_000}))
    head, private, research = table(world)
    amounts = [dict(zip(head, row, strict=True)) for row in (private, research)]
    assert [(one["cost_EUR"], one["cost_USD"]) for one in amounts] == [("0.00", "10.00"), ("4.00", "20.00")]


def test_csv_has_all_groups_and_one_that_is_long_lies_in_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "IN_MEMORY", 64)
    for number in range(150):
        hold(world, f"w{number}", Held(NOW - HOUR))
    assert len(table(world, by="workload", page_size=1)) == 1 + 152


def test_members_get_their_own_as_csv_too(world: World) -> None:
    assert [row[0] for row in table(world, "member", by="user")[1:]] == ["member"]


def test_what_is_refused_is_refused_before_the_file_begins(world: World) -> None:
    answer = world.client("admin").get(PATH, params={"format": "csv", "workspace": "absent"})
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_a_person_asks_so_much_at_once_and_no_more(world: World) -> None:
    places: Places = world.app.state.metering
    places.take(world.ids.users["admin"])
    places.take(world.ids.users["admin"])
    answer = world.client("admin").get(PATH)
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    places.give(world.ids.users["admin"])
    assert get(world)["total"] is not None


def test_a_file_keeps_its_persons_place_until_it_was_sent(world: World) -> None:
    places: Places = world.app.state.metering
    admin = world.ids.users["admin"]
    held: list[bool] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        places.take(admin)
        try:
            places.take(admin)
            places.give(admin)
            held.append(False)
        except Refusal:
            held.append(True)
        places.give(admin)

    headers = [(b"authorization", f"Bearer {world.tokens['admin']}".encode())]
    scope = {"type": "http", "method": "GET", "path": PATH, "raw_path": PATH.encode(), "root_path": "", "state": {}}
    scope |= {"query_string": b"format=csv", "headers": headers, "scheme": "http", "http_version": "1.1"}
    scope |= {"client": ("192.0.2.1", 1), "server": ("corral.test", 80)}
    asyncio.run(world.app(scope, receive, send))
    assert held and all(held)
    for _ in range(2):
        places.take(admin)  # and it was given back


# -- budgets

BUDGET = "/api/v1/orgs/acme/budgets/research"


def test_a_budget_is_set_listed_and_removed(world: World) -> None:
    body = {"amount": "16.00", "currency": "EUR", "thresholds": [50, 100]}
    made = world.client("admin").put(BUDGET, json=body)
    shown = {
        "workspace": "research",
        **body,
        "month": "2026-03",
        "spent": "8.00",
        "percent": 50,
        "forecast": "8.00",
        "other_costs": {},
        "unpriced_gpu_seconds": 0,
        "changed_at": "2026-03-01T12:00:00Z",
    }
    assert (made.status_code, made.json()) == (200, shown)
    path = "/api/v1/orgs/acme/budgets"
    world.client("admin").put(f"{path}/private", json={"amount": "1", "currency": "EUR"})
    first = world.client("owner").get(path, params={"page_size": 1}).json()
    rest = world.client("owner").get(path, params={"page_token": first["next_page_token"]}).json()
    assert [one["thresholds"] for one in first["items"]] == [[50, 80, 100]]
    assert rest == {"items": [shown], "next_page_token": None}
    assert world.client("admin").delete(BUDGET).status_code == 204
    assert world.client("admin").delete(BUDGET).status_code == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", 1000),
        ("amount", 1000.5),
        ("amount", "0"),
        ("amount", "1e3"),
        ("currency", "€"),
        ("thresholds", []),
        ("thresholds", [True]),
        ("thresholds", ["50"]),
        ("thresholds", [50.5]),
        ("thresholds", [10**400]),
        ("stop", True),
    ],
)
def test_a_bad_budget_names_its_field(world: World, field: str, value: Any) -> None:
    body = json.dumps({"amount": "10", "currency": "EUR", field: value}).encode()
    headers = {"Content-Type": "application/json"}
    answer = world.client("admin").request("PUT", BUDGET, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["details"]["field"].startswith(field)
