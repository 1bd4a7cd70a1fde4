"""Organisations: made and removed by the operator, named and joined through their owners (spec 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from corral.domain import clusters as cluster_rules
from corral.domain import orgs as rules
from corral.domain import users
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.permissions import Role
from corral.domain.workspaces import NAMED
from corral.store import break_glass, cluster_requests, fleet, links, workspaces
from corral.store import clusters as cluster_rows
from corral.store import join_tokens as join_token_rows
from corral.store import orgs as rows
from corral.store.transaction import Row, Wake
from corral.usecases import links as link_acts
from corral.usecases.context import Context, Org
from corral.usecases.links import NewLink

ALL = 10_000


@dataclass(frozen=True)
class Organisation:
    """An organisation and the caller's role in it (None: the operator, who is no member)."""

    id: str
    slug: str
    name: str
    contact: str
    role: str | None
    created_at: datetime
    machine_limit: int | None = None
    """On the hosted cluster, set by the operator for this organisation; None: the site's."""


@dataclass(frozen=True)
class Invitation:
    """A live invitation. `login` "": for whoever holds it."""

    id: str
    role: str
    login: str
    by: str
    created_at: datetime
    expires_at: datetime


def create(ctx: Context, slug: str, name: str, contact: str) -> Organisation:
    """Make an organisation. Errors: `INVALID_NAME`, `INVALID_REQUEST`, `NAME_TAKEN`."""
    slug, name, contact = rules.org_slug(slug), rules.org_name(name), rules.contact(contact)
    id = ctx.new_id()
    if not rows.add(ctx.tx, id, slug, name, contact):
        raise Refusal("NAME_TAKEN", f"There is an organisation '{slug}' already. Choose another short name.")
    made = replace(ctx, org_or_none=Org(id, slug, name, contact))
    made.record_for_both("org.created", Subject(org=id), slug=slug, name=name)
    return Organisation(id, slug, name, contact, None, ctx.now)


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Organisation]:
    """Return the caller's organisations, the operator's being all; by short name."""
    ask = rows.listed if ctx.user.operator else rows.of_user
    return [_organisation(row) for row in ask(ctx.tx, ctx.user.id, after, limit)]


def show(ctx: Context) -> Organisation:
    row = rows.with_role(ctx.tx, ctx.org.slug, ctx.user.id)
    if row is None:
        raise not_found()
    return _organisation(row)


def change(ctx: Context, name: str | None, contact: str | None) -> Organisation:
    """Change what is given. Errors: `INVALID_NAME`, `INVALID_REQUEST`."""
    before = locked(ctx)
    wanted: dict[str, str] = {}
    if name is not None:
        wanted["name"] = rules.org_name(name)
    if contact is not None:
        wanted["contact"] = rules.contact(contact)
    changed = {field: value for field, value in wanted.items() if before[field] != value}
    if changed:
        rows.change(ctx.tx, ctx.scope, **changed)
        old = {field: before[field] for field in changed}
        ctx.record("org.changed", Subject(org=ctx.org.id), before=old, after=changed)
    return show(ctx)


def remove(ctx: Context) -> None:
    """Remove an organisation that has nothing left. Errors: `CONFLICT`, saying what it has.

    Its people lose it at once; its short name is free again; its audit is kept.
    """
    locked(ctx)
    fleet.lock_org(ctx.tx, ctx.scope)
    tenancies = cluster_rows.listed(ctx.tx, ctx.scope, None, ALL)
    revoked = [id for row in tenancies for id in join_token_rows.revoke_unused(ctx.tx, ctx.scope, row["cluster_id"])]
    _check_empty(ctx)
    cluster_rows.remove_of_org(ctx.tx, ctx.scope)
    cluster_requests.withdraw_open(ctx.tx, ctx.scope)
    ended = break_glass.end_all(ctx.tx, ctx.scope)
    people = [row["user_id"] for row in rows.members_listed(ctx.tx, ctx.scope, None, ALL)]
    links.revoke_of_org(ctx.tx, ctx.scope)
    rows.remove(ctx.tx, ctx.scope)
    data = {"slug": ctx.org.slug, "name": ctx.org.name, **cluster_rules.revoked(revoked)}
    ctx.record_for_both("org.removed", Subject(org=ctx.org.id), **data)
    for user_id in [*people, *ended]:
        ctx.wake(Wake.STREAMS, user_id)


def invite(ctx: Context, role: Role, login: str | None, ttl_s: int | None) -> NewLink:
    """Make an invitation. Errors: `INVALID_NAME`, `INVALID_REQUEST`, `CONFLICT` (a member already)."""
    made, told = _invite(ctx, role, login, ttl_s)
    ctx.record("org.member.invited", Subject(org=ctx.org.id), **told)
    return made


def invite_owner(ctx: Context, login: str | None, ttl_s: int | None) -> NewLink:
    """Let the operator invite the first owner, or a new one when none is left. Errors: as `invite`, and `CONFLICT`."""
    locked(ctx)
    if rows.owners(ctx.tx, ctx.scope):
        raise Refusal("CONFLICT", "The organisation has an owner, who invites further ones. Ask an owner.")
    made, told = _invite(ctx, Role.OWNER, login, ttl_s)
    ctx.record_for_both("org.member.invited", Subject(org=ctx.org.id), **told)
    return made


def _invite(ctx: Context, role: Role, login: str | None, ttl_s: int | None) -> tuple[NewLink, dict[str, str]]:
    """Make an invitation; return it, and what of it is recorded."""
    ttl = rules.invitation_ttl(ttl_s)
    meant_for = users.login(login) if login else ""
    locked(ctx)
    if meant_for and rows.member(ctx.tx, ctx.scope, meant_for) is not None:
        raise Refusal("CONFLICT", f"'{meant_for}' is a member already. Change their role instead.")
    made = link_acts.make(ctx, links.INVITATION, ttl, org_id=ctx.org.id, role=role.value, login=meant_for)
    return made, {"role": role.value, "login": meant_for, "invitation": made.id}


def invitations(ctx: Context, after: str | None, limit: int) -> Sequence[Invitation]:
    """Return the live invitations, oldest first."""
    return [
        Invitation(row["id"], row["role"], row["login"] or "", row["by"] or "", row["created_at"], row["expires_at"])
        for row in links.invitations(ctx.tx, ctx.scope, after, limit)
    ]


def revoke_invitation(ctx: Context, id: str) -> None:
    """Revoke a live invitation. Errors: `NOT_FOUND`."""
    row = links.revoke_invitation(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    ctx.record("org.invitation.revoked", Subject(org=ctx.org.id), role=row["role"], login=row["login"], invitation=id)


def locked(ctx: Context) -> Row:
    """Return the organisation's row, locked: the first lock of every act on its people. Errors: `NOT_FOUND`."""
    row = rows.lock(ctx.tx, ctx.scope)
    if row is None:
        raise not_found()
    return row


def _check_empty(ctx: Context) -> None:
    machines = workspaces.count_machines(ctx.tx, ctx.scope)
    live = workspaces.live_workloads(ctx.tx, ctx.scope, None, None, NAMED)
    has = [f"{machines} machine{'s' if machines > 1 else ''}"] if machines else []
    has += [f"live workloads ({', '.join(live)})"] if live else []
    if has:
        raise Refusal(
            "CONFLICT",
            f"The organisation still has {' and '.join(has)}. Its admins remove and terminate them first; machines of "
            "a cluster that was left come back with the cluster.",
            machines=machines,
            workloads=list(live),
        )


def _organisation(row: Row) -> Organisation:
    told = (row["id"], row["slug"], row["name"], row["contact"], row["role"], row["created_at"])
    return Organisation(*told, row["machine_limit"])
