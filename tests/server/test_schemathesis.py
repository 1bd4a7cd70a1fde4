"""The whole OpenAPI document, asked by every role with what it allows and what it does not (spec 60, lines 6 and 8).

No answer is a 5xx, differs from the document, or says anything of another organisation. Every write is undone, so
one world serves all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core import NotSet
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from corral.domain import budgets as budget_rules
from corral.domain.compute_clusters import Creation
from corral.domain.reservations import Given
from corral.usecases import alert_rules, budgets, reservations, webhooks, workspaces
from tests.placing import create
from tests.server.walk import CALLERS, NEXT_YEAR, STREAMS, TABLE, Walk, walking
from tests.world import World

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 40
"""Of each operation; together with every role and both kinds of data."""
LINES = {str(line): line for line in TABLE}
NAMES = {
    "org": ["acme", "rival", "absent"],
    "ws": ["research", "private", "absent"],
    "cluster": ["default", "rivals-own", "absent"],
    "node": ["gpu-1", "rivals-gpu", "absent"],
    "name": ["dev", "rivals-work", "absent"],
    "user": ["member", "rival", "rivals-person", "absent"],
}
MARKS = (
    *("rivals-own", "rivals-gpu", "rivals-workspace", "rivals-work", "rivals-person"),
    *("rivals-hook", "rivals-rule", "rivals-reason", "7654321.89"),
)
"""What only rival has, its budget too: nobody else may read it, but in what they sent themselves."""


THEIRS: dict[str, str] = {}
"""By kind of thing: the id of rival's."""


def operations() -> list[str]:
    return [
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        if path not in STREAMS
        for method in methods
    ]


@pytest.fixture(scope="module")
def walk(module_db_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walking(module_db_url, tmp_path_factory.mktemp("schema")) as made:
        made.db.forgets = False
        THEIRS.update(furnish(made.world))
        made.db.forgets = True
        yield made


def furnish(world: World) -> dict[str, str]:
    """Give rival one of each thing, each with its mark; return the ids of what is named by id."""
    world.add_machine("rivals-gpu", "rival")
    world.add_member("rivals-person", "rival")
    with world.act("rival", "rival") as ctx:
        workspaces.create(ctx, "rivals-workspace", "rivals-workspace")
        seal = world.app.state.seal
        hook = webhooks.create(ctx, seal, webhooks.Asked("rivals-hook", "https://hooks.example.com/", [])).row
        told = alert_rules.Told(webhook=hook["id"])
        rule = alert_rules.create(ctx, seal, alert_rules.Asked("rivals-rule", told=told))
        window = (f"{NEXT_YEAR}-03-01T00:00:00Z", f"{NEXT_YEAR}-03-02T00:00:00Z")
        reserved = reservations.create(ctx, "default", Given(*window, nodes=["rivals-gpu"], reason="rivals-reason"))
    with world.act("rival", "rival", "rivals-workspace") as ctx:
        budgets.put(ctx, budget_rules.asked("7654321.89", "EUR", [100]))
    create(world, Creation("rivals-work", time_limit_seconds=3600), "rival")
    return {"webhooks": hook["id"], "alert-rules": rule["id"], "reservations": reserved.id}


def test_rival_itself_reads_every_mark(walk: Walk) -> None:
    """Else a mark that nobody reads would prove nothing."""
    pages = ["workspaces", "members", "webhooks", "alert-rules", "budgets", "clusters", "clusters/default/nodes"]
    pages += ["clusters/default/reservations", "workspaces/research/compute-clusters"]
    read = "".join(walk.world.client("rival").get(f"/api/v1/orgs/rival/{page}").text for page in pages)
    assert [mark for mark in MARKS if mark not in read] == []


@pytest.fixture(scope="module")
def schema(walk: Walk) -> Any:
    return schemathesis.openapi.from_dict(walk.world.app.openapi())


def headers(case: Case[Any], walk: Walk, who: str | None) -> dict[str, str]:
    """What was generated and HTTP can carry, and whose token it is."""
    made = {k: v for k, v in (case.headers or {}).items() if v.isascii() and v.isprintable()}
    mine = {"Authorization": f"Bearer {walk.world.tokens[who]}"} if who else {}
    return {
        **{k: v for k, v in made.items() if k.lower() != "authorization"},
        "content-type": "application/json",
        **mine,
    }


def content(case: Case[Any]) -> bytes | None:
    if isinstance(case.body, NotSet):
        return None
    return case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()


def url(case: Case[Any], named: dict[str, str]) -> str:
    return case.path.format(**{name: quote(str(value), safe="%") for name, value in named.items()})


def asked(walk: Walk, label: str, case: Case[Any]) -> st.SearchStrategy[tuple[str, str | None]]:
    """What is asked and who asks: half of the time what is there, by one who is let in."""
    line = LINES[label]
    one_who_may = CALLERS[line.who.index("+")]
    parameters = dict(case.path_parameters or {})
    kind = line.path.partition("/{id}")[0].rpartition("/")[2]
    ids = {"id": [one[kind] for one in (walk.ids, THEIRS) if kind in one]}
    named = {name: st.sampled_from(NAMES.get(name) or ids.get(name) or [value]) for name, value in parameters.items()}
    elsewhere = st.one_of(st.fixed_dictionaries(named), st.just(parameters)).map(lambda names: url(case, names))
    by_anybody = st.tuples(elsewhere, st.sampled_from([*CALLERS, None]))
    return st.one_of(st.just((walk.url(line, one_who_may), one_who_may)), by_anybody)


@pytest.mark.parametrize("label", operations())
def test_no_answer_breaks_the_document_or_tells_of_others(walk: Walk, schema: Any, label: str) -> None:
    method, _, path = label.partition(" ")
    operation = schema[path][method]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data(), cases)
    def ask(data: st.DataObject, case: Case[Any]) -> None:
        where, who = data.draw(asked(walk, label, case))
        request = walk.world.http.build_request(
            method, where, params=case.query, headers=headers(case, walk, who), content=content(case)
        )
        answer = walk.world.http.send(request)
        case.validate_response(answer, checks=CHECKS)
        if who not in ("rival", "operator"):
            sent = f"{where} {case.query} {case.body!r}"
            assert not [mark for mark in MARKS if mark in answer.text and mark not in sent]

    ask()
