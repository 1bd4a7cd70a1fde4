"""Alerts: conditions that people asked to be told about, open and closed (spec 10, "Events, audit, alerts")."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from corral.server.door import AtDoor, Page, page_token
from corral.store.transaction import Row
from corral.usecases import alerts as use

router = APIRouter()


class AlertView(BaseModel):
    """`count`: how often it began; `told_at`: when whoever the rules name was last told; `data`: of its last cause."""

    id: str
    kind: str
    title: str
    open: bool
    count: int
    opened_at: datetime
    last_at: datetime
    closed_at: datetime | None
    told_at: datetime | None
    cluster_id: str | None
    workspace_id: str | None
    machine_id: str | None
    data: dict[str, Any]


class AlertList(BaseModel):
    items: list[AlertView]
    next_page_token: str | None


def read_query(
    open: bool | None = None,
    kind: str | None = None,
    workspace: str | None = None,
    cluster: str | None = None,
    machine: str | None = None,
) -> use.Query:
    """`machine` needs `cluster`."""
    return use.Query(open, kind, workspace, cluster, machine)


@router.get("/api/v1/orgs/{org}/alerts")
def list_alerts(org: str, query: Annotated[use.Query, Depends(read_query)], page: Page, door: AtDoor) -> AlertList:
    """List alerts, the newest first. Members see those about their workspaces."""
    with door.read() as ctx:
        rows = use.listed(ctx, query, page.after, page.size + 1)
    items = [_view(row) for row in rows[: page.size]]
    return AlertList(items=items, next_page_token=page_token(items[-1].id) if len(rows) > page.size else None)


def _view(row: Row) -> AlertView:
    names = ("id", "kind", "title", "count", "opened_at", "last_at", "closed_at", "told_at")
    about = ("cluster_id", "workspace_id", "machine_id", "data")
    return AlertView(**{name: row[name] for name in (*names, *about)}, open=row["closed_at"] is None)
