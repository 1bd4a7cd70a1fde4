"""The site's settings and its own audit: the operator's door (spec 05)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel

from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, page_token
from corral.store.transaction import Row
from corral.usecases import site as use
from corral.usecases.journal import Filter

router = APIRouter()


class SiteView(BaseModel):
    """`contact` tells organisations whom to ask; the limit is machines per organisation on the hosted cluster.

    `private_targets`: networks (CIDR) in which webhooks and alert rules may tell though they are private.
    """

    incarnation: str
    contact: str
    hosted_machine_limit: int
    private_targets: list[str]
    created_at: datetime

    @staticmethod
    def of(site: use.Site) -> SiteView:
        return SiteView(**vars(site))


class SiteChange(Body):
    contact: str | None = None
    hosted_machine_limit: int | None = None
    private_targets: list[str] | None = None


class AuditView(BaseModel):
    """One entry of the site's own audit: who did what, from where."""

    seq: int
    at: datetime
    type: str
    actor: str
    actor_kind: str
    address: str
    request_id: str
    data: dict[str, Any]

    @staticmethod
    def of(row: Row) -> AuditView:
        same = {name: row[name] for name in ("seq", "at", "type", "actor_kind", "address", "request_id", "data")}
        return AuditView(actor=row["actor_name"], **same)


class AuditList(BaseModel):
    items: list[AuditView]
    next_page_token: str | None


@router.get("/api/v1/site")
def show_site(door: AtDoor) -> SiteView:
    """Show the site's settings."""
    with door.read() as ctx:
        return SiteView.of(use.show(ctx))


@router.patch("/api/v1/site")
def change_site(body: SiteChange, door: AtDoor) -> SiteView:
    """Change the site's settings; a field left out is kept."""
    with door.write() as ctx:
        return SiteView.of(use.change(ctx, body.contact, body.hosted_machine_limit, body.private_targets))


@router.get("/api/v1/site/audit")
def list_site_audit(
    page: Page,
    door: AtDoor,
    type: Annotated[list[str] | None, Query(max_length=50)] = None,
    actor: str | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> AuditList:
    """List the site's own audit entries, newest first; types may end in `.*`. Organisations have their own."""
    before = page.sequence()
    want = Filter(types=tuple(type or ()), actor=actor, since=since, until=until)
    with door.read() as ctx:
        rows = use.audit(ctx, want, before, page.size + 1)
    items = [AuditView.of(row) for row in rows[: page.size]]
    more = len(rows) > page.size
    return AuditList(items=items, next_page_token=page_token(str(items[-1].seq)) if more else None)
