"""Every route x every role x a foreign organisation (spec 05), through the real app. The table is in `walk.py`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.domain.permissions import ROUTES, SCOPES
from corral.server.app import routes_of
from tests.server.walk import CALLERS, CLUSTER, CODES, PUBLIC, TABLE, WS, Line, Walk, walking

EVERY = pytest.mark.parametrize("line", TABLE, ids=str)


@pytest.fixture(scope="module")
def walk(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("walk")
    shutil.copy(sqlite_template, folder / "corral.db")
    with walking(f"sqlite:///{folder / 'corral.db'}", folder) as made:
        yield made


def test_no_route_is_missing_from_the_walk(walk: Walk) -> None:
    lines = [(line.method, line.path) for line in TABLE]
    assert sorted(lines) == sorted(set(lines))
    assert set(lines) == set(routes_of(walk.world.app))
    assert set(lines) == set(ROUTES)


@EVERY
def test_each_role_gets_in_where_the_spec_says_and_nowhere_else(walk: Walk, line: Line) -> None:
    for who, letter in zip(CALLERS, line.who, strict=True):
        status, body = walk.ask(line, walk.url(line, who), walk.world.tokens[who])
        if letter == "+":
            assert status not in (401, 403, 404, 405) and status < 500, (who, status, body)
        else:
            assert (status, body.get("code")) == CODES[letter], (who, status, body)


@EVERY
def test_nobody_gets_in_without_a_login(walk: Walk, line: Line) -> None:
    status, body = walk.ask(line, walk.url(line, None), None)
    if line.scope:
        assert (status, body.get("code")) == CODES["U"], body
    elif line.who == PUBLIC:
        assert status not in (401, 403, 404, 405) and status < 500, body
    else:
        assert status == 401, body


@pytest.mark.parametrize("line", [line for line in TABLE if line.scope], ids=str)
def test_a_token_needs_the_scope_and_no_other(walk: Walk, line: Line) -> None:
    who = CALLERS[line.who.index("+")]
    without = walk.token(who, sorted(set(SCOPES) - {"all", line.scope}))
    alone = walk.token(who, [line.scope])
    status, body = walk.ask(line, walk.url(line, who), without)
    assert (status, body.get("code")) == CODES["F"], body
    status, body = walk.ask(line, walk.url(line, who), alone)
    assert status not in (401, 403, 404), body


@pytest.mark.parametrize("line", [line for line in TABLE if "{org}" in line.path], ids=str)
def test_a_foreign_organisation_answers_as_an_absent_one(walk: Walk, line: Line) -> None:
    token = walk.world.tokens["rival"]
    foreign = walk.ask(line, walk.url(line, "rival"), token)
    assert foreign == walk.ask(line, walk.url(line, "rival", org="absent"), token)
    assert foreign[0] == 404


@pytest.mark.parametrize("line", [line for line in TABLE if "{ws}" in line.path], ids=str)
def test_a_workspace_of_others_answers_as_an_absent_one(walk: Walk, line: Line) -> None:
    for who, ws in (("outsider", "research"), ("member", "private")):
        token = walk.world.tokens[who]
        others = walk.ask(line, walk.url(line, who, ws=ws), token)
        assert others == walk.ask(line, walk.url(line, who, ws="absent"), token)
        assert others[0] == 404


@pytest.mark.parametrize("line", [line for line in TABLE if line.path.startswith((CLUSTER, WS + "/access/"))], ids=str)
def test_a_cluster_of_another_organisation_answers_as_an_absent_one(walk: Walk, line: Line) -> None:
    token = walk.world.tokens["owner"]
    foreign = walk.ask(line, walk.url(line, "owner", cluster="rivals-own"), token)
    assert foreign == walk.ask(line, walk.url(line, "owner", cluster="absent"), token)
    assert foreign[0] == 404
