"""One signed POST to addresses that were judged: as Standard Webhooks says, and nothing that a target could use.

No redirect is followed, no proxy asked, no cookie kept; of an answer only its status and `Retry-After` are looked at.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore
from standardwebhooks import Webhook

from corral import __version__
from corral.domain.cloud_events import CONTENT_TYPE
from corral.domain.targets import NOT_REACHED, Url
from corral.domain.webhooks import Outcome

CONNECT_S = 5.0
READ_S = 10.0
BODY_MAX = 4096
BODY_S = 2.0
"""An answer's body is read, a little of it, only to let its sender finish."""
_FAILED = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, httpcore.UnsupportedProtocol)


@dataclass(frozen=True)
class Letter:
    """What is sent: the delivery's id, its body, and the secret it is signed with."""

    id: str
    body: str
    secret: str = field(repr=False)


async def post(letter: Letter, url: Url, addresses: Sequence[str], tls: ssl.SSLContext) -> Outcome:
    """Post to the first of `addresses` that can be connected to. Errors: `OSError`."""
    origin = httpcore.Origin(url.scheme.encode(), url.host.encode(), url.port)
    connection = httpcore.AsyncHTTPConnection(origin, ssl_context=tls, network_backend=_Only(addresses), http2=False)
    try:
        response = await connection.handle_async_request(_request(letter, url))
        await _read_some(response)
    except _FAILED:
        return Outcome(None, error=NOT_REACHED)
    finally:
        await connection.aclose()
    return Outcome(response.status, _retry_after(response.headers), _error(response.status))


class _Only(httpcore.AsyncNetworkBackend):
    """A network that leads to these addresses, whatever it is asked for."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def connect_tcp(self, host: str, port: int, *given: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        failed: Exception = OSError("there is no address")
        for address in self._addresses:
            try:
                return await httpcore.AnyIOBackend().connect_tcp(address, port, *given, **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


def _request(letter: Letter, url: Url) -> httpcore.Request:
    """Made of the URL's parts as they were judged, so that nobody reads it differently."""
    body = letter.body.encode()
    headers = {
        "Host": url.authority,
        "User-Agent": f"Corral/{__version__}",
        "Accept": "*/*",
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **signed(letter, datetime.now(timezone.utc)),
    }
    return httpcore.Request(
        b"POST",
        httpcore.URL(scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()),
        headers=[(name.encode(), value.encode()) for name, value in headers.items()],
        content=body,
        extensions={"timeout": {"connect": CONNECT_S, "read": READ_S, "write": READ_S, "pool": CONNECT_S}},
    )


def signed(letter: Letter, at: datetime) -> dict[str, str]:
    """Return the headers of Standard Webhooks. The id stays when a delivery is sent again; the time does not."""
    id = f"msg_{letter.id}"
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(letter.secret).sign(id, at, letter.body),
    }


async def _read_some(response: httpcore.Response) -> None:
    """Read up to `BODY_MAX` of a body, and forget it. It came with a status: how it goes on changes nothing."""
    seen = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in response.aiter_stream():
                seen += len(chunk)
                if seen >= BODY_MAX:
                    return
    except (TimeoutError, *_FAILED):
        return


def _error(status: int) -> str:
    if 200 <= status < 300:
        return ""
    return "It answered with a redirect, which is not followed." if 300 <= status < 400 else f"It answered {status}."


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds of a `Retry-After` header, which has seconds or a date."""
    text = next((value.decode("latin-1") for name, value in headers if name.lower() == b"retry-after"), "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (at - datetime.now(timezone.utc)).total_seconds() if at.tzinfo is not None else None
