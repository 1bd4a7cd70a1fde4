"""The OpenAPI document: made from the routes, committed as docs/openapi.json; a difference fails the build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corral.server.app import create_app
from corral.server.config import Config
from corral.store.engine import Database


def document() -> dict[str, Any]:
    """Return the document of this release, keys sorted. Touches no database and no file."""
    db = Database("sqlite://")
    try:
        made = create_app(Config("sqlite://", Path("unused")), db).openapi()
    finally:
        db.close()
    ordered: dict[str, Any] = json.loads(json.dumps(made, sort_keys=True))
    return ordered
