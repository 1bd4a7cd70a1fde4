"""Thin doors, one file a noun. A new noun adds its router here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import BaseRoute

from corral.server.routes import health

ROUTERS: tuple[APIRouter, ...] = (health.router,)


def bare_routes() -> list[BaseRoute]:
    """Return the agents' routes: plain Starlette, outside FastAPI's machinery (facts: a third of the cost)."""
    return []
