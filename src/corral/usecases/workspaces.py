"""Workspaces and the people in them (spec 05). Members see only those they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import workspaces as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.permissions import Part
from corral.store import access as access_rows
from corral.store import fleet
from corral.store import orgs as org_rows
from corral.store import workspaces as rows
from corral.store.transaction import Row
from corral.usecases import desired, orgs
from corral.usecases.context import Context


@dataclass(frozen=True)
class Workspace:
    """A workspace and the caller's part in it (None: an admin who is not in it)."""

    id: str
    slug: str
    name: str
    part: str | None
    created_at: datetime


@dataclass(frozen=True)
class Member:
    user_id: str
    login: str
    name: str
    part: str
    since: datetime


def create(ctx: Context, slug: str, name: str) -> Workspace:
    """Make a workspace. Errors: `INVALID_NAME`, `NAME_TAKEN`."""
    slug, name = rules.workspace_slug(slug), rules.workspace_name(name)
    orgs.locked(ctx)
    id = ctx.new_id()
    if not rows.add(ctx.tx, ctx.scope, id, slug, name):
        raise Refusal("NAME_TAKEN", f"The organisation has a workspace '{slug}' already. Choose another short name.")
    ctx.record("workspace.created", Subject(org=ctx.org.id, workspace=id), slug=slug, name=name)
    return Workspace(id, slug, name, None, ctx.now)


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Workspace]:
    """Return the workspaces the caller may see, by short name."""
    found = rows.listed(ctx.tx, ctx.scope, None if ctx.admin else ctx.user.id, after, limit)
    return [_workspace(ctx, row) for row in found]


def show(ctx: Context) -> Workspace:
    row = rows.by_slug(ctx.tx, ctx.scope, ctx.workspace.slug)
    if row is None:
        raise not_found()
    return _workspace(ctx, row)


def rename(ctx: Context, name: str) -> Workspace:
    """Change the shown name; the short name stays. Errors: `INVALID_NAME`."""
    name = rules.workspace_name(name)
    before = _locked(ctx)["name"]
    if name != before:
        rows.rename(ctx.tx, ctx.scope, ctx.workspace.id, name)
        ctx.record("workspace.changed", _subject(ctx), before={"name": before}, after={"name": name})
    return show(ctx)


def remove(ctx: Context) -> None:
    """Remove a workspace without live workloads, its access with it. Errors: `CONFLICT`, naming them."""
    row = _locked(ctx)
    fleet.lock_org(ctx.tx, ctx.scope)
    clusters = access_rows.clusters_of(ctx.tx, ctx.scope, ctx.workspace.id)
    for cluster_id in clusters:
        fleet.touch(ctx.tx, ctx.scope, cluster_id)
    live = rows.live_workloads(ctx.tx, ctx.scope, ctx.workspace.id, None, rules.NAMED + 1)
    rules.check_nothing_lives(live, f"The workspace '{row['slug']}'")
    for cluster_id in clusters:
        access_rows.remove(ctx.tx, ctx.scope, ctx.workspace.id, cluster_id)
    rows.remove(ctx.tx, ctx.scope, ctx.workspace.id)
    ctx.record("workspace.removed", _subject(ctx), slug=row["slug"], name=row["name"])


def members(ctx: Context, after: str | None, limit: int) -> Sequence[Member]:
    """Return the people in the workspace by login."""
    found = rows.members_listed(ctx.tx, ctx.scope, ctx.workspace.id, after, limit)
    return [Member(row["user_id"], row["login"], row["name"], row["part"], row["since"]) for row in found]


def set_member(ctx: Context, user: str, part: Part) -> Member:
    """Put a member of the organisation (login or id) in, or change their part. Errors: `NOT_FOUND`."""
    _locked(ctx)
    person = _person(ctx, user)
    before = rows.part_of(ctx.tx, ctx.scope, ctx.workspace.id, person["user_id"])
    if before != part.value:
        rows.set_part(ctx.tx, ctx.scope, ctx.workspace.id, person["user_id"], part.value)
        ctx.record("workspace.member.set", _subject(ctx), login=person["login"], before=before, after=part.value)
        desired.wake_user(ctx.tx, ctx.scope, person["user_id"])
    return next(one for one in members(ctx, None, orgs.ALL) if one.user_id == person["user_id"])


def remove_member(ctx: Context, user: str) -> None:
    """Take somebody out of the workspace; their open streams into it close. Errors: `NOT_FOUND`."""
    _locked(ctx)
    person = _person(ctx, user)
    if not rows.remove_member(ctx.tx, ctx.scope, ctx.workspace.id, person["user_id"]):
        raise not_found()
    ctx.record("workspace.member.removed", _subject(ctx), login=person["login"])
    desired.wake_user(ctx.tx, ctx.scope, person["user_id"])


def _locked(ctx: Context) -> Row:
    """Return the workspace under the organisation's lock. Errors: `NOT_FOUND` when it went meanwhile."""
    orgs.locked(ctx)
    row = rows.by_slug(ctx.tx, ctx.scope, ctx.workspace.slug)
    if row is None or row["id"] != ctx.workspace.id:
        raise not_found()
    return row


def _person(ctx: Context, user: str) -> Row:
    row = org_rows.member(ctx.tx, ctx.scope, user.lower())
    if row is None:
        raise not_found()
    return row


def _subject(ctx: Context) -> Subject:
    return Subject(org=ctx.org.id, workspace=ctx.workspace.id)


def _workspace(ctx: Context, row: Row) -> Workspace:
    part = rows.part_of(ctx.tx, ctx.scope, row["id"], ctx.user.id)
    return Workspace(row["id"], row["slug"], row["name"], part, row["created_at"])
