"""Who is at the door, and may they come in (spec 05): one place for every route, stream and job.

`enter` runs inside the transaction of the act itself, so a token revoked or a role lost
a moment before counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.domain import secrets
from corral.domain.errors import Refusal, not_found
from corral.domain.permissions import Part, Role, Rule, Who, allows
from corral.store import break_glass
from corral.store import orgs as org_rows
from corral.store import users as user_rows
from corral.store.transaction import Actor, Scope, Tx
from corral.usecases.context import Context, Org, User, Workspace


@dataclass(frozen=True)
class Caller:
    """A request's credential and where it came from. `token` is the bearer text, unchecked."""

    token: str | None
    address: str = ""
    request_id: str = ""


@dataclass(frozen=True)
class Place:
    """What the path names: short names as they stand in it."""

    org: str | None = None
    workspace: str | None = None


@dataclass(frozen=True)
class Principal:
    """Somebody logged in, with the API token they used."""

    user: User
    token_id: str
    scopes: frozenset[str]


def enter(tx: Tx, caller: Caller, rule: Rule, place: Place) -> Context:
    """Return the context of an act, or refuse.

    Errors: `UNAUTHENTICATED`; `NOT_FOUND` where the caller may not know that the organisation
    or workspace exists; `FORBIDDEN` where their role or the token's scopes do not allow it.
    """
    if Who.PUBLIC in rule.who:
        return Context(tx, Actor("site", None, "anonymous", caller.address, caller.request_id))
    principal = identify(tx, caller)
    user = principal.user
    actor = Actor("user", user.id, user.login, caller.address, caller.request_id)
    context = Context(tx, actor, user, token_id=principal.token_id, scopes=principal.scopes)
    if place.org is not None:
        context = _in_org(context, rule, place)
    in_workspace = context.part is not None
    if place.workspace is not None and not context.admin and not in_workspace and context.role is not None:
        raise not_found()  # a member must not learn of workspaces that are not theirs
    if not allows(rule, context.role, in_workspace, user.operator):
        raise Refusal("FORBIDDEN", _why_not(rule, context))
    if "all" not in principal.scopes and rule.scope not in principal.scopes:
        raise Refusal(
            "FORBIDDEN",
            f"This API token lacks the scope '{rule.scope}'. Make one that has it, or log in.",
            scope=rule.scope,
        )
    return context


def identify(tx: Tx, caller: Caller) -> Principal:
    """Return who the bearer token belongs to. Errors: `UNAUTHENTICATED`."""
    secret = secrets.parse(secrets.API, caller.token) if caller.token else None
    if secret is None:
        raise Refusal("UNAUTHENTICATED", "Log in first: `corral login`, or send an API token as a bearer token.")
    row = user_rows.token_owner(tx, secret.public_id)
    if row is None or not secrets.same(row["secret_hash"], secret.hash):
        raise Refusal("UNAUTHENTICATED", "This token is unknown or was revoked. Log in again.")
    if row["revoked_at"] is not None or (row["expires_at"] is not None and row["expires_at"] <= tx.now):
        raise Refusal("UNAUTHENTICATED", "This token has expired or was revoked. Log in again.")
    user = User(row["user_id"], row["login"], row["name"], row["operator"])
    return Principal(user, row["token_id"], frozenset(row["scopes"]))


def _in_org(context: Context, rule: Rule, place: Place) -> Context:
    """Add organisation, role, workspace and part; an operator who is no member gets neither role nor workspace.

    Under break-glass an operator reads as an admin does, where the rule lets them look.
    """
    row = org_rows.with_role(context.tx, place.org or "", context.user.id)
    if row is None or (row["role"] is None and not context.user.operator):
        raise not_found()
    org = Org(row["id"], row["slug"], row["name"], row["contact"])
    context = replace(context, org_or_none=org, role=Role(row["role"]) if row["role"] else None)
    if rule.look and context.user.operator and not context.admin:
        look = break_glass.live(context.tx, Scope(org.id), context.user.id)
        context = context if look is None else replace(context, role=Role.ADMIN, look=look["id"])
    if place.workspace is None or context.role is None:
        return context
    found = org_rows.workspace_with_part(context.tx, Scope(org.id), place.workspace, context.user.id)
    if found is None:
        raise not_found()
    workspace = Workspace(found["id"], org.id, found["slug"], found["name"])
    return replace(context, workspace_or_none=workspace, part=Part(found["part"]) if found["part"] else None)


def _why_not(rule: Rule, context: Context) -> str:
    if context.role is None and context.user.operator:
        may_look = " To look at it, with a reason that they see: corral site break-glass." if rule.look else ""
        return f"The site's operator does not act inside an organisation. Ask one of its owners.{may_look}"
    if rule.who is Who.OPERATOR:
        return "Only the site's operator may do this."
    who = "an owner" if Who.ADMIN not in rule.who else "an owner or admin"
    role = context.role.value if context.role else "no role"
    return f"Your role here ({role}) does not allow this. Ask {who} of the organisation."
