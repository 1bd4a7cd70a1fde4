"""Logging in by password or one-time link (spec 05). The only doors of people that need no login."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from corral.server.bodies import Body
from corral.server.door import AtDoor
from corral.usecases import login as use

router = APIRouter()

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Corral: log in</title>
<body style="font: 16px/1.5 sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em">
<h1>Corral</h1>
<p>This is a one-time link. To use it, copy the whole address of this page and run, in a terminal:</p>
<pre>corral login 'ADDRESS'</pre>
<p>The link works once. The part after <code>#</code> is a secret: it stays in your browser and is sent to nobody.</p>
</body>
</html>
"""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class PasswordLogin(Body):
    login: str
    password: str


class LinkLogin(Body):
    """`login` and `name` are what somebody new wants to be called; `password` sets one, or proves an existing login."""

    link: str
    login: str | None = None
    name: str | None = None
    password: str | None = None


class UserView(BaseModel):
    id: str
    login: str
    name: str
    operator: bool


class MembershipView(BaseModel):
    slug: str
    name: str
    role: str


class LoggedIn(BaseModel):
    """`token` is shown this once; null when the caller came with an API token and goes on with it."""

    token: str | None
    user: UserView
    orgs: list[MembershipView]

    @staticmethod
    def of(result: use.LoggedIn) -> LoggedIn:
        orgs = [MembershipView(**vars(org)) for org in result.orgs]
        return LoggedIn(token=result.token, user=UserView(**vars(result.user)), orgs=orgs)


@router.get("/login", response_class=HTMLResponse, include_in_schema=False)
def login_page() -> HTMLResponse:
    """Say what to do with a one-time link."""
    return HTMLResponse(PAGE, headers=HEADERS)


@router.post("/api/v1/login")
def log_in(body: PasswordLogin, request: Request, door: AtDoor) -> LoggedIn:
    """Log in with a password; the answer has an API token that works for 30 days."""
    return LoggedIn.of(use.by_password(door, request.app.state.attempts, body.login, body.password))


@router.post("/api/v1/login/link")
def use_link(body: LinkLogin, request: Request, door: AtDoor) -> LoggedIn:
    """Use a one-time link: the operator's, an invitation, or a login link. It works exactly once.

    An existing person accepts an invitation with their password, or with their API token as bearer.
    """
    ask = use.LinkAsk(body.link, body.login, body.name, body.password)
    return LoggedIn.of(use.by_link(door, request.app.state.attempts, ask))
