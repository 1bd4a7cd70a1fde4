"""Thin doors, one file a noun. A new noun adds its router here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import BaseRoute

from corral.server import tunnel
from corral.server.routes import (
    agent_files,
    agent_join,
    agents,
    alert_rules,
    alerts,
    break_glass,
    budgets,
    cluster_requests,
    clusters,
    compute_clusters,
    connections,
    data_location,
    dedicated_clusters,
    gpu_faults,
    health,
    join_tokens,
    journal,
    journal_export,
    login,
    machine_labels,
    machines,
    me,
    orgs,
    prices,
    removal,
    reservations,
    site,
    tls,
    topology,
    updates,
    usage,
    webhooks,
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
    dedicated_clusters.router,
    cluster_requests.router,
    break_glass.router,
    join_tokens.router,
    machines.router,
    machine_labels.router,
    reservations.router,
    data_location.router,
    gpu_faults.router,
    removal.router,
    compute_clusters.router,
    connections.router,
    budgets.router,
    prices.router,
    usage.router,
    journal.router,
    journal_export.router,
    topology.router,
    updates.router,
    alerts.router,
    alert_rules.router,
    webhooks.router,
    tls.router,
)


def bare_routes() -> list[BaseRoute]:
    """Return the agents' routes: plain Starlette, outside FastAPI's machinery (facts: a third of the cost)."""
    return [agent_join.route(), *agent_files.routes(), *agents.ROUTES, *tunnel.routes()]
