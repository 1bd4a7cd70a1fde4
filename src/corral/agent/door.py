"""Whether the site would take this machine's session now: what an old release asks while a new one is on trial.

It asks as the link does, by the same address, CA, proxy and key, and leaves before it has said hello: so no session
is opened, and the new release's is not superseded. A site that only serves files (its database is away, or
takes no writes), or that puts machines off (429, 503), or does not know the key, takes none; nor does one that cannot
be reached.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from websockets.sync.client import connect

from corral.agent.link import QUIET, SESSION_PATH
from corral.agent.site import Site
from corral.agent.state import StateFolder

log = logging.getLogger(__name__)

ANSWERS_WITHIN_S = 30.0
_OPEN, _SHUT = b"+", b"-"


def knock(state: StateFolder) -> None:
    """Return when the site takes sessions of this machine now. Errors: many kinds, when it does not."""
    machine = state.machine()
    if machine is None:
        raise LookupError("this machine has not joined a site")
    site = Site.at(machine.url, state.ca())
    with connect(
        site.websocket(SESSION_PATH),
        additional_headers={"Authorization": f"Bearer {state.key()}"},
        ssl=site.tls,
        compression=None,
        open_timeout=ANSWERS_WITHIN_S,
        ping_interval=None,
        close_timeout=5,
        logger=QUIET,
    ):
        pass


class Knocks:
    """Knocks every `every_s` seconds once it was started, in a thread that keeps nobody from ending.

    `heard` can be read when there is an answer to be taken with `is_open`.
    """

    def __init__(self, ask: Callable[[], None], every_s: float) -> None:
        self._ask, self._every_s = ask, every_s
        self.heard, self._told = socket.socketpair()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Knocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.heard.close()
        if self._thread is None:
            self._told.close()

    def start(self) -> None:
        """Begin; again is no more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._go_on, name="knocks", daemon=True)
            self._thread.start()

    def is_open(self) -> bool:
        """Return the next answer: whether the site takes sessions."""
        return self.heard.recv(1) == _OPEN

    def _go_on(self) -> None:
        with self._told, contextlib.suppress(OSError):  # nobody listens any more
            while not self._ended.is_set():
                self._told.sendall(self._answer())
                self._ended.wait(self._every_s)

    def _answer(self) -> bytes:
        try:
            self._ask()
        except Exception as error:  # whatever it is, the site cannot be told from an outage
            log.info("the site takes no session of this machine now: %s", error or type(error).__name__)
            return _SHUT
        return _OPEN


class Door:
    """How long, without a break, the site's door has been open, or shut. Times: seconds of one steady clock."""

    def __init__(self) -> None:
        self._is_open: bool | None = None
        self._since = self._last = 0.0

    def seen(self, is_open: bool, now: float) -> None:
        if is_open is not self._is_open:
            self._is_open, self._since = is_open, now
        self._last = now

    @property
    def open_for(self) -> float:
        return self._last - self._since if self._is_open else 0.0

    @property
    def shut_for(self) -> float:
        return 0.0 if self._is_open else self._last - self._since
