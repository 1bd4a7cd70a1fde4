"""The committed OpenAPI document is the one that the routes make, whole and documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corral.server.document import document

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


def _operations(made: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in made["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_document_is_this_releases() -> None:
    assert json.loads(COMMITTED.read_text()) == document(), "the API changed: run `make openapi` and commit it"


def test_making_it_twice_gives_the_same() -> None:
    assert json.dumps(document()) == json.dumps(document())


def test_every_operation_is_documented_and_named_once() -> None:
    operations = _operations(document())
    assert [name for name, operation in operations if operation["description"].startswith(("For ", "No login"))] == []
    ids = [operation["operationId"] for _, operation in operations]
    assert len(ids) == len(set(ids))
