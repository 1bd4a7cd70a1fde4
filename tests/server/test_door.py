"""What holds at the door of every list: a page token is one that the list gave."""

from __future__ import annotations

import pytest

from corral.server.door import keys_token, page_token
from tests.world import World

SEVERAL_KEYS = (
    "/api/v1/orgs/acme/workspaces/research/machines",
    "/api/v1/orgs/acme/workspaces/research/gpus",
    "/api/v1/orgs/acme/workspaces/research/topology",
    "/api/v1/orgs/acme/clusters/default/reservations",
    "/api/v1/orgs/acme/usage",
)
OTHERS = {
    "a text": page_token("gpu-1"),
    "two in one text": page_token("gpu-1/0197"),
    "too few": keys_token([]),
    "too many": keys_token(["a"] * 9),
    "of other kinds": keys_token([1, 2]),
    "no list": page_token('{"a": 1}'),
    "a NUL": keys_token(["a\0", "b"]),
    "no base64": "%%%",
}


@pytest.mark.parametrize("token", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("path", SEVERAL_KEYS)
def test_a_page_token_that_the_list_did_not_give_is_refused(world: World, path: str, token: str) -> None:
    answer = world.client("admin").get(path, params={"page_token": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.json()["details"]["field"] == "page_token", answer.text


@pytest.mark.parametrize("token", [*OTHERS.values(), keys_token(["x", "y"]), keys_token([2**31, "x"])])
def test_neither_is_one_for_the_operators_requests(world: World, token: str) -> None:
    answer = world.client("operator").get("/api/v1/site/cluster-requests", params={"page_token": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
