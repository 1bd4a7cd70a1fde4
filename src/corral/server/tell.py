"""A process of its own that tells one mail or chat service, by the apprise library (`server/messages.py` starts it).

Apart, because the library is large, knows no deadline, and opens connections by itself: here whatever the whole
process sends is judged by the address that it really goes to, and it starts no program. The address of the service is
judged again by what the library itself read in it. Reads one JSON object from stdin: `url`, `title`, `text`, `opened`
(networks), `check` (only say whether the address can be read). Exits 0: told; 1: not.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from corral.domain.alert_targets import PARAMETERS, SERVICES
from corral.domain.targets import Network, may_reach

if TYPE_CHECKING:
    from apprise import AppriseAsset, NotifyBase

DEADLINE_S = 25
_SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_PROGRAMS = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
)


def only_to(opened: Sequence[Network]) -> None:
    """Let this process send only where a tenant may have it send, by TCP, and start no program; for ever.

    Names are looked up by the system's resolver, in which nothing of this is seen. Whatever asks for a connection
    has an address by then: a name is refused, so it is looked up nowhere else.
    """

    def judge(event: str, given: tuple[Any, ...]) -> None:
        if event in _SENDS:
            _check(given[0], given[1], opened)
        elif event in _PROGRAMS:
            raise PermissionError("no program is started here")

    # The interpreter asks before each such call, whichever library makes it; nothing takes a hook off again.
    sys.addaudithook(judge)


def _check(sock: socket.socket, address: Any, opened: Sequence[Network]) -> None:
    """Errors: `PermissionError`. `address` None: to whom it is connected, which was judged then."""
    tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not tcp or (address is not None and not may_reach(str(address[0]), opened)):
        raise PermissionError("this address may not be reached")


def service(url: str, asset: AppriseAsset) -> NotifyBase | None:
    """Return the one service of an address (None: it cannot be read, or is more than rules may tell)."""
    from apprise import Apprise
    from apprise.plugins import url_to_dict

    # Not `Apprise.add`: it makes several services of a text that has separators in it.
    read = url_to_dict(url)  # type: ignore[no-untyped-call]  # the library gives it no types
    if not read or read["schema"] not in SERVICES or not url.startswith(f"{read['schema']}://"):
        return None
    if not PARAMETERS.issuperset(read["qsd"]):
        return None
    made = Apprise.instantiate(read, asset=asset)
    if made is None or not made.verify_certificate or made.redirects or getattr(made, "template", None):
        return None
    return made


def main() -> int:
    signal.alarm(DEADLINE_S)
    asked = json.load(sys.stdin)
    only_to([ip_network(text) for text in asked["opened"]])
    from apprise import Apprise, AppriseAsset, NotifyFormat

    asset = AppriseAsset(http_redirects=False)
    made = service(asked["url"], asset)
    if made is None:
        return 1
    if asked["check"]:
        return 0
    teller = Apprise(asset=asset)
    teller.add(made)
    return 0 if teller.notify(asked["text"], title=asked["title"], body_format=NotifyFormat.TEXT) else 1


if __name__ == "__main__":
    sys.exit(main())
