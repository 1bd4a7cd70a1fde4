"""Oneself: name, password, API tokens, SSH keys (spec 05, spec 20, spec 50)."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from corral.server.bodies import Body
from corral.server.door import AtDoor, Page, page_token
from corral.server.routes.login import MembershipView
from corral.usecases import login, ssh_keys, tokens, users
from corral.usecases.context import Context

router = APIRouter()


class MeView(BaseModel):
    """Who the caller is. `scopes` are those of the API token in use."""

    id: str
    login: str
    name: str
    operator: bool
    scopes: list[str]
    orgs: list[MembershipView]

    @staticmethod
    def of(ctx: Context, name: str) -> MeView:
        user = ctx.user
        orgs = [MembershipView(**vars(org)) for org in login.memberships(ctx, user.id)]
        return MeView(
            id=user.id, login=user.login, name=name, operator=user.operator, scopes=sorted(ctx.scopes), orgs=orgs
        )


class MeChange(Body):
    name: str


class PasswordChange(Body):
    """`present` is needed where a password is set already."""

    password: str
    present: str | None = None


class TokenView(BaseModel):
    """An API token as lists show it. `login` says that it was made by logging in."""

    id: str
    public_id: str
    name: str
    scopes: list[str]
    login: bool
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None

    @staticmethod
    def of(token: tokens.Token) -> TokenView:
        return TokenView(
            login=token.from_login,
            scopes=list(token.scopes),
            **{name: getattr(token, name) for name in _SAME},
        )


_SAME = ("id", "public_id", "name", "created_at", "expires_at", "last_used_at")


class NewTokenView(TokenView):
    """`token` is the secret, shown this once."""

    SECRETS: ClassVar[tuple[str, ...]] = ("token",)

    token: str | None


class TokenList(BaseModel):
    items: list[TokenView]
    next_page_token: str | None


class NewToken(Body):
    """`expires_in_seconds`: 60 to 157680000; 90 days when left out."""

    name: str
    scopes: list[str]
    expires_in_seconds: int | None = None


class SshKeyView(BaseModel):
    id: str
    name: str
    fingerprint: str
    public_key: str
    created_at: datetime

    @staticmethod
    def of(key: ssh_keys.SshKey) -> SshKeyView:
        return SshKeyView(**vars(key))


class SshKeyList(BaseModel):
    items: list[SshKeyView]
    next_page_token: str | None


class NewSshKey(Body):
    """`public_key` is the one line of a .pub file; without `name` the key is called by its comment."""

    public_key: str
    name: str | None = None


@router.get("/api/v1/me")
def show_me(door: AtDoor) -> MeView:
    """Show who the caller is, their organisations, and what their token may do."""
    with door.read() as ctx:
        return MeView.of(ctx, ctx.user.name)


@router.patch("/api/v1/me")
def change_me(body: MeChange, door: AtDoor) -> MeView:
    """Change one's own name."""
    with door.write() as ctx:
        return MeView.of(ctx, users.rename(ctx, body.name))


@router.put("/api/v1/me/password", status_code=204)
def set_password(body: PasswordChange, request: Request, door: AtDoor) -> None:
    """Set one's own password; other logins end, API tokens stay."""
    login.change_password(door, request.app.state.attempts, body.present, body.password)


@router.get("/api/v1/me/tokens")
def list_tokens(page: Page, door: AtDoor) -> TokenList:
    """List one's live API tokens, oldest first; never their secrets."""
    with door.read() as ctx:
        found = tokens.listed(ctx, page.after, page.size + 1)
    items = [TokenView.of(token) for token in found[: page.size]]
    return TokenList(items=items, next_page_token=page_token(items[-1].id) if len(found) > page.size else None)


@router.post("/api/v1/me/tokens", status_code=201, response_model=NewTokenView)
def create_token(body: NewToken, door: AtDoor) -> JSONResponse:
    """Make an API token with no more scopes than the token in use has. The secret is shown this once."""

    def make(ctx: Context) -> NewTokenView:
        made = tokens.create(ctx, body.name, body.scopes, body.expires_in_seconds)
        return NewTokenView(token=made.text, **TokenView.of(made.token).model_dump())

    return door.create(body, make)


@router.delete("/api/v1/me/tokens/{id}", status_code=204)
def revoke_token(id: str, door: AtDoor) -> None:
    """Revoke an API token (id or public id) at once; streams opened with it close."""
    with door.write() as ctx:
        tokens.revoke(ctx, id)


@router.get("/api/v1/me/ssh-keys")
def list_ssh_keys(page: Page, door: AtDoor) -> SshKeyList:
    """List one's SSH keys by name."""
    with door.read() as ctx:
        found = ssh_keys.listed(ctx, page.after, page.size + 1)
    items = [SshKeyView.of(key) for key in found[: page.size]]
    return SshKeyList(items=items, next_page_token=page_token(items[-1].name) if len(found) > page.size else None)


@router.post("/api/v1/me/ssh-keys", status_code=201, response_model=SshKeyView)
def add_ssh_key(body: NewSshKey, door: AtDoor) -> JSONResponse:
    """Add an SSH public key, to be attached to compute clusters."""
    return door.create(body, lambda ctx: SshKeyView.of(ssh_keys.add(ctx, body.name, body.public_key)))


@router.delete("/api/v1/me/ssh-keys/{id}", status_code=204)
def remove_ssh_key(id: str, door: AtDoor) -> None:
    """Remove an SSH key (id or name); it is detached everywhere and open sessions close."""
    with door.write() as ctx:
        ssh_keys.remove(ctx, id)
