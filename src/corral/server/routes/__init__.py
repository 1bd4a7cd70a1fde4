"""Thin doors, one file a noun. A new noun adds its router here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import BaseRoute

from corral.server import tunnel
from corral.server.routes import (
    agent_files,
    agent_join,
    agents,
    clusters,
    compute_clusters,
    connections,
    health,
    join_tokens,
    journal,
    journal_export,
    login,
    machines,
    me,
    orgs,
    site,
    tls,
    topology,
    workspaces,
)

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    site.router,
    login.router,
    me.router,
    orgs.router,
    workspaces.router,
    clusters.router,
    join_tokens.router,
    machines.router,
    compute_clusters.router,
    connections.router,
    journal.router,
    journal_export.router,
    topology.router,
    tls.router,
)


def bare_routes() -> list[BaseRoute]:
    """Return the agents' routes: plain Starlette, outside FastAPI's machinery (facts: a third of the cost)."""
    return [agent_join.route(), *agent_files.routes(), *agents.ROUTES, *tunnel.routes()]
