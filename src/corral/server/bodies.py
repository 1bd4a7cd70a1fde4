"""What bodies and answers of people's routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import State

from corral.server.config import Config

DryRun = Annotated[bool, Query(description="Answer who and what would be affected; change nothing.")]


class Body(BaseModel):
    """A request's body: no unknown fields, no types turned into others."""

    model_config = ConfigDict(extra="forbid", strict=True)


def link_url(state: State, secret: str) -> str:
    """Return a one-time link as people get it. What follows `#` never reaches a server's log."""
    config: Config = state.config
    base = getattr(state, "public_url", "") or config.public_url or f"http://{config.host}:{config.port}"
    pin = getattr(state, "ca_fingerprint", None)
    return f"{base}/login#{secret}" + (f"&ca={pin}" if pin else "")
