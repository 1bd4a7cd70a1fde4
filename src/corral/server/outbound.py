"""Sending to addresses that tenants chose (spec 10 "Events, audit, alerts"): the one way out of the control plane.

A host is resolved once, each of its addresses is judged (`domain/targets`), and the connection goes to exactly such an
address, with TLS for the name (`server/posting.py`). Mail and chat go by `server/messages.py`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from corral.controllers.deliveries import Job
from corral.domain import targets
from corral.domain.errors import Refusal
from corral.domain.targets import NOT_REACHED, Network, Url
from corral.domain.webhooks import Outcome
from corral.server.messages import Messages
from corral.usecases.deliveries import Due
from corral.usecases.sealing import CANNOT_BE_OPENED, Seal

TOTAL_S = 15.0
RESOLVE_S = 5.0
RESOLVERS = 16

Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> Sequence[str]:
    """Return a host's addresses as text. Errors: `OSError`, `UnicodeError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Outbound:
    """`resolver` and `trust` (the certificates believed) are given in tests only."""

    def __init__(
        self,
        seal: Seal,
        messages: Messages,
        *,
        resolver: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
        within_s: float = TOTAL_S,
    ) -> None:
        self._seal, self.messages = seal, messages
        self._resolver, self._trust, self._within_s = resolver, trust, within_s
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")

    def check(self, host: str, port: int, scheme: str, opened: Sequence[Network]) -> None:
        """Look a host up and check that it may be told. Blocks for some seconds at most. Errors: `INVALID_URL`."""
        try:
            addresses = self._threads.submit(self._resolver, host, port).result(RESOLVE_S)
        except (OSError, UnicodeError):
            addresses = []
        targets.check_addresses(scheme, addresses, opened)

    async def send(self, job: Job) -> Outcome:
        """Send; never raises for what a target does."""
        due = job.dues[0]
        opens = self._seal.open((due.secret if due.by_webhook else due.target) or b"", due.target_id)
        if opens is None:
            return Outcome(None, error=CANNOT_BE_OPENED)
        if not due.by_webhook:
            return await self.messages.send(opens, [one.body for one in job.dues], job.opened)
        try:
            async with asyncio.timeout(self._within_s):
                return await self._post(due, opens, job.opened)
        except (Refusal, OSError, UnicodeError):
            return Outcome(None, error=NOT_REACHED)

    async def aclose(self) -> None:
        self.messages.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _post(self, due: Due, secret: str, opened: Sequence[Network]) -> Outcome:
        from corral.server import posting  # with its HTTP library, only where something is sent

        url = targets.url(due.url or "")
        addresses = await self._addresses(url, opened)
        return await posting.post(posting.Letter(due.id, due.body, secret), url, addresses, self._tls())

    async def _addresses(self, url: Url, opened: Sequence[Network]) -> Sequence[str]:
        """Resolve, once; what is returned was judged, and is what is connected to. Errors: `INVALID_URL`, `OSError`."""
        asking = asyncio.get_running_loop().run_in_executor(self._threads, self._resolver, url.host, url.port)
        async with asyncio.timeout(RESOLVE_S):
            addresses = await asking
        targets.check_addresses(url.scheme, addresses, opened)
        return addresses

    def _tls(self) -> ssl.SSLContext:
        # Made when first needed: the system's certificates take memory.
        if self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust
