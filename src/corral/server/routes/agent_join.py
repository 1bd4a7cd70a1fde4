"""`POST /api/v1/agent/join`: a machine joins (spec 40, "Joining"). Its only credential is the token in the body."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from corral.domain.errors import Refusal
from corral.protocol.messages import PROTOCOL_VERSION, JoinAnswer, JoinRequest
from corral.server.rate_limit import RateLimit
from corral.server.threads import Threads
from corral.store.engine import Database
from corral.usecases import joining
from corral.usecases.sessions import OLDEST_PROTOCOL

PATH = "/api/v1/agent/join"
THREADS = 4
BURST, PER_SECOND = 300, 5.0
"""Refused attempts of one address: a whole fleet may stand behind one, and what runs in its containers."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JoinRequest).decode


def route() -> Route:
    """Return the route, with its own count of refused attempts."""
    limit = RateLimit(BURST, PER_SECOND)
    threads, doubtful = Threads(THREADS), Threads(1)

    async def join(request: Request) -> Response:
        address = request.client.host if request.client else ""
        wait = limit.wait_s(address)
        try:
            body = await _body(request)
            # A token that is good is heard whatever else came from its address, so it is looked up first.
            if wait and not await doubtful.run(lambda: _may_join(request, body)):
                raise _too_many(address, wait)
            answer = await threads.run(lambda: _join(request, body, address))
        except Refusal:
            if not wait:
                limit.spend(address)
            raise
        return Response(_encode(answer), media_type="application/json")

    return Route(PATH, join, methods=["POST"])


def _too_many(address: str, wait_s: int) -> Refusal:
    return Refusal(
        "RATE_LIMITED", f"Too many joins from {address} were refused. Try again in {wait_s} s.", retry_after_s=wait_s
    )


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise Refusal("INVALID_REQUEST", "The body was cut short or too long. Send it again.") from error


def _join(request: Request, body: bytes, address: str) -> JoinAnswer:
    """Join in one transaction. A refusal is raised after the commit: what it recorded stays."""
    ask = replace(_asked(body), address=address[:64], request_id=str(request.scope["state"]["request_id"]))
    db: Database = request.app.state.db
    with db.write() as tx:
        joined = joining.join(tx, ask)
    if isinstance(joined, Refusal):
        raise joined
    return JoinAnswer(joined.machine.id, joined.machine.name, joined.org, joined.cluster, joined.incarnation)


def _may_join(request: Request, body: bytes) -> bool:
    """Return whether the token is one that lets this machine in, by all that a look can tell."""
    try:
        ask = _asked(body)
    except Refusal:
        return False
    db: Database = request.app.state.db
    with db.read() as tx:
        return joining.may_join(tx, ask)


def _asked(body: bytes) -> joining.Ask:
    sent = _read(body)
    return joining.asked(sent.token, sent.key, sent.hostname, sent.release)


def _read(body: bytes) -> JoinRequest:
    try:
        sent = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refusal(
            "INVALID_REQUEST", f"The body is not a join request, JSON in UTF-8: {error}. Correct it and send it again."
        ) from error
    if sent.protocol < OLDEST_PROTOCOL:
        raise Refusal(
            "PROTOCOL_TOO_OLD",
            f"This agent speaks protocol {sent.protocol}; this site needs {OLDEST_PROTOCOL} to {PROTOCOL_VERSION}. "
            "Run the install command again: it brings the site's own agent.",
        )
    return sent
