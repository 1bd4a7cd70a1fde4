"""Organisations, their members and invitations (spec 05)."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.domain.permissions import Role
from corral.server.bodies import Body, link_url
from corral.server.door import AtDoor, Page, page_token
from corral.usecases import members, orgs
from corral.usecases.links import NewLink

router = APIRouter()

RoleName = Literal["owner", "admin", "member"]


class OrgView(BaseModel):
    """An organisation and the caller's role in it (null: the operator, who is no member).

    `machine_limit`: on the hosted cluster, set by the operator for this organisation; null: the site's.
    """

    id: str
    slug: str
    name: str
    contact: str
    role: str | None
    created_at: datetime
    machine_limit: int | None

    @staticmethod
    def of(org: orgs.Organisation) -> OrgView:
        return OrgView(**vars(org))


class OrgList(BaseModel):
    items: list[OrgView]
    next_page_token: str | None


class NewOrg(Body):
    slug: str
    name: str
    contact: str = ""


class OrgChange(Body):
    """A field left out is kept. `contact` tells members whom to ask for more; "" takes it away."""

    name: str | None = None
    contact: str | None = None


class MemberView(BaseModel):
    user_id: str
    login: str
    name: str
    role: str
    joined_at: datetime

    @staticmethod
    def of(member: members.Member) -> MemberView:
        return MemberView(**vars(member))


class MemberList(BaseModel):
    items: list[MemberView]
    next_page_token: str | None


class RoleChange(Body):
    role: RoleName


class InvitationView(BaseModel):
    """A live invitation. `login` "": for whoever holds it."""

    id: str
    role: str
    login: str
    by: str
    created_at: datetime
    expires_at: datetime


class InvitationList(BaseModel):
    items: list[InvitationView]
    next_page_token: str | None


class NewInvitation(Body):
    """`login` means it for one person; `ttl_seconds`: 60 to 2592000, 7 days when left out."""

    role: RoleName
    login: str | None = None
    ttl_seconds: int | None = None


class NewOwnerInvitation(Body):
    login: str | None = None
    ttl_seconds: int | None = None


class LinkView(BaseModel):
    """A one-time link; `link` is a secret, shown this once."""

    SECRETS: ClassVar[tuple[str, ...]] = ("link",)

    id: str
    link: str | None
    expires_at: datetime

    @staticmethod
    def of(request: Request, made: NewLink) -> LinkView:
        return LinkView(id=made.id, link=link_url(request.app.state, made.text), expires_at=made.expires_at)


@router.get("/api/v1/orgs")
def list_orgs(page: Page, door: AtDoor) -> OrgList:
    """List the caller's organisations; the operator sees all. By short name."""
    with door.read() as ctx:
        found = orgs.listed(ctx, page.after, page.size + 1)
    items = [OrgView.of(org) for org in found[: page.size]]
    return OrgList(items=items, next_page_token=page_token(items[-1].slug) if len(found) > page.size else None)


@router.post("/api/v1/orgs", status_code=201, response_model=OrgView)
def create_org(body: NewOrg, door: AtDoor) -> JSONResponse:
    """Make an organisation; then invite its first owner."""
    return door.create(body, lambda ctx: OrgView.of(orgs.create(ctx, body.slug, body.name, body.contact)))


@router.get("/api/v1/orgs/{org}")
def show_org(org: str, door: AtDoor) -> OrgView:
    """Show an organisation."""
    with door.read() as ctx:
        return OrgView.of(orgs.show(ctx))


@router.patch("/api/v1/orgs/{org}")
def change_org(org: str, body: OrgChange, door: AtDoor) -> OrgView:
    """Change an organisation's shown name or contact line; the short name never changes."""
    with door.write() as ctx:
        return OrgView.of(orgs.change(ctx, body.name, body.contact))


@router.delete("/api/v1/orgs/{org}", status_code=204)
def remove_org(org: str, door: AtDoor) -> None:
    """Remove an organisation that has no machines and no live workloads."""
    with door.write() as ctx:
        orgs.remove(ctx)


@router.post("/api/v1/orgs/{org}/owner-invitations", status_code=201, response_model=LinkView)
def invite_owner(org: str, body: NewOwnerInvitation, request: Request, door: AtDoor) -> JSONResponse:
    """Invite the first owner, or a new one when none is left: the operator's way into a tenant, and the only one."""
    return door.create(body, lambda ctx: LinkView.of(request, orgs.invite_owner(ctx, body.login, body.ttl_seconds)))


@router.get("/api/v1/orgs/{org}/members")
def list_members(org: str, page: Page, door: AtDoor) -> MemberList:
    """List the members by login."""
    with door.read() as ctx:
        found = members.listed(ctx, page.after, page.size + 1)
    items = [MemberView.of(member) for member in found[: page.size]]
    return MemberList(items=items, next_page_token=page_token(items[-1].login) if len(found) > page.size else None)


@router.patch("/api/v1/orgs/{org}/members/{user}")
def set_member_role(org: str, user: str, body: RoleChange, door: AtDoor) -> MemberView:
    """Give a member (login or id) a role. Admins set roles below owner; the last owner stays."""
    with door.write() as ctx:
        return MemberView.of(members.set_role(ctx, user, Role(body.role)))


@router.delete("/api/v1/orgs/{org}/members/{user}", status_code=204)
def remove_member(org: str, user: str, door: AtDoor) -> None:
    """Take a member out of the organisation and its workspaces; their open streams close."""
    with door.write() as ctx:
        members.remove(ctx, user)


@router.post("/api/v1/orgs/{org}/members/{user}/login-links", status_code=201, response_model=LinkView)
def create_login_link(org: str, user: str, request: Request, door: AtDoor) -> JSONResponse:
    """Make a one-time link for a member of this organisation alone who lost their password."""
    return door.create(None, lambda ctx: LinkView.of(request, members.login_link(ctx, user)))


@router.get("/api/v1/orgs/{org}/invitations")
def list_invitations(org: str, page: Page, door: AtDoor) -> InvitationList:
    """List invitations that still work, oldest first; never their secrets."""
    with door.read() as ctx:
        found = orgs.invitations(ctx, page.after, page.size + 1)
    items = [InvitationView(**vars(invitation)) for invitation in found[: page.size]]
    return InvitationList(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.post("/api/v1/orgs/{org}/invitations", status_code=201, response_model=LinkView)
def invite(org: str, body: NewInvitation, request: Request, door: AtDoor) -> JSONResponse:
    """Invite somebody with a role: a one-time link, to be given to them."""
    return door.create(
        body,
        lambda ctx: LinkView.of(request, orgs.invite(ctx, Role(body.role), body.login, body.ttl_seconds)),
    )


@router.delete("/api/v1/orgs/{org}/invitations/{id}", status_code=204)
def revoke_invitation(org: str, id: str, door: AtDoor) -> None:
    """Revoke an invitation."""
    with door.write() as ctx:
        orgs.revoke_invitation(ctx, id)
