"""Behind a proxy (spec 05): its word about the client is believed, nobody else's; plain HTTP from it alone."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> list[Network]:
    """Return the addresses and networks (`10.0.0.0/8`) named. Errors: ValueError."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def within(address: str, trusted: Iterable[Network]) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in trusted)


class OnlyFrom:
    """Refuse connections that do not come from the proxy: they would be plain, and could lie about the client."""

    def __init__(self, app: ASGIApp, trusted: Iterable[Network]) -> None:
        self.app = app
        self.trusted = list(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or within((scope.get("client") or ("", 0))[0], self.trusted):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)


async def _refuse(send: Send) -> None:
    answer = {
        "code": "FORBIDDEN",
        "message": "This port answers only the proxy that stands before the site. Use the site's own address.",
        "details": {},
        "request_id": "",
    }
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
