"""Sending to addresses that tenants chose (spec 10 "Events, audit, alerts"): the one way out of the control plane.

A host is resolved once (`server/lookups.py`), each of its addresses is judged (`domain/targets`), and the connection
goes to exactly such an address, with TLS for the name (`server/posting.py`). Mail and chat go by `server/messages.py`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from corral.controllers.deliveries import Job
from corral.domain import targets
from corral.domain.errors import Refusal
from corral.domain.targets import NOT_REACHED, Network, Url
from corral.domain.turns import AT_ONCE, OF_AN_ORG
from corral.domain.webhooks import Outcome
from corral.server.lookups import Lookups, Resolve, Room
from corral.server.messages import Messages
from corral.usecases.deliveries import Due
from corral.usecases.sealing import CANNOT_BE_OPENED, Seal

TOTAL_S = 15.0
# More than can be on their way, since look-ups of those before may still run. Threads are made when they are needed.
OF_DELIVERIES, SILENT_OF_DELIVERIES = Room(AT_ONCE + AT_ONCE // 2, (OF_AN_ORG,)), Room(8, (2,))
OF_PEOPLE, SILENT_OF_PEOPLE = Room(16, (4, 2)), Room(4, (1, 1))
"""For an organisation, and for one of its people."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Return a host's addresses as text. Errors: `OSError`, `UnicodeError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True)
class Asker:
    """For whom a host is looked up; `opened`: the private networks in which tenants may be told."""

    org_id: str
    user_id: str
    opened: tuple[Network, ...]


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
        self._trust, self._within_s = trust, within_s
        self._for_people = Lookups(resolver, OF_PEOPLE, SILENT_OF_PEOPLE)
        self._for_deliveries = Lookups(resolver, OF_DELIVERIES, SILENT_OF_DELIVERIES)

    def check(self, asker: Asker, to: Url) -> None:
        """Look a host up for somebody and check that it may be told. Blocks for some seconds at most.

        Errors: `INVALID_URL`, `RATE_LIMITED`.
        """
        try:
            addresses = self._for_people.wait((asker.org_id, asker.user_id), to.host, to.port)
        except (OSError, UnicodeError):
            addresses = []
        targets.check_addresses(to.scheme, addresses, asker.opened)

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
        self._for_people.close()
        self._for_deliveries.close()

    async def _post(self, due: Due, secret: str, opened: Sequence[Network]) -> Outcome:
        from corral.server import posting  # with its HTTP library, only where something is sent

        url = targets.url(due.url or "")
        addresses = await self._addresses(due.org_id, url, opened)
        return await posting.post(posting.Letter(due.id, due.body, secret), url, addresses, self._tls())

    async def _addresses(self, org_id: str, url: Url, opened: Sequence[Network]) -> Sequence[str]:
        """Resolve, once; what is returned was judged, and is what is connected to. Errors: `Refusal`, `OSError`."""
        addresses = await self._for_deliveries.look_up((org_id,), url.host, url.port)
        targets.check_addresses(url.scheme, addresses, opened)
        return addresses

    def _tls(self) -> ssl.SSLContext:
        # Made when first needed: the system's certificates take memory.
        if self._trust is None:
            self._trust = ssl.create_default_context()
        return self._trust
