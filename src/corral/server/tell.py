"""A process of its own that tells one mail or chat service, by the apprise library (`server/messages.py` starts it).

Apart, because the library is large, knows no deadline, and opens connections by itself: here every connection of the
whole process is judged by the address that it really goes to. Reads one JSON object from stdin: `url`, `title`,
`text`, `opened` (networks), `check` (only say whether the address can be read). Exits 0: told; 1: not.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from corral.domain.targets import Network, may_reach

DEADLINE_S = 25


def only_to(opened: Sequence[Network]) -> None:
    """Let this process connect only where a tenant may have it connect."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def judged(self: socket.socket, address: Any) -> None:
        _check(self, address, opened)
        connect(self, address)

    def judged_ex(self: socket.socket, address: Any) -> int:
        _check(self, address, opened)
        return connect_ex(self, address)

    setattr(socket.socket, "connect", judged)  # noqa: B010
    setattr(socket.socket, "connect_ex", judged_ex)  # noqa: B010


def _check(sock: socket.socket, address: Any, opened: Sequence[Network]) -> None:
    """Errors: `PermissionError`."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not may_reach(str(address[0]), opened):
        raise PermissionError("this address may not be reached")


def main() -> int:
    signal.alarm(DEADLINE_S)
    asked = json.load(sys.stdin)
    only_to([ip_network(text) for text in asked["opened"]])
    from apprise import Apprise, NotifyFormat

    service = Apprise()
    if not service.add(asked["url"]):
        return 1
    if asked["check"]:
        return 0
    return 0 if service.notify(asked["text"], title=asked["title"], body_format=NotifyFormat.TEXT) else 1


if __name__ == "__main__":
    sys.exit(main())
