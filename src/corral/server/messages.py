"""Mail and chat messages: each told by a process of its own (`server/tell.py`), with a deadline.

What waits for one service together is told in one message: a rack that falls silent makes one mail, not forty.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from structlog import get_logger

import corral
from corral.domain.errors import Refusal
from corral.domain.targets import Network
from corral.domain.turns import SERVICES_AT_ONCE
from corral.domain.webhooks import TAKEN, Outcome
from corral.server.places import Places

log = get_logger()

WITHIN_S = 20.0
CHECKS_AT_ONCE = 2
CHECKS_OF_AN_ORG = 1
CHECK_WAIT_S, CHECK_WITHIN_S = 2.0, 10.0
"""A check blocks a thread that others need too; it takes about a second."""
LINES_MAX = 20
NOT_TAKEN = (
    "The service did not take it: check the address and what opens it; its host may be one that the site may not reach."
)
"""All that a tenant learns: what a service answered may tell of the site's network."""


class Messages:
    """Each is a process: at most `SERVICES_AT_ONCE` messages at a time, and `CHECKS_AT_ONCE` checks of addresses.

    From the loop, or from threads.
    """

    def __init__(self, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._limiter: CapacityLimiter | None = None
        self._checks = threading.BoundedSemaphore(CHECKS_AT_ONCE)
        self._checks_of_org = Places(CHECKS_OF_AN_ORG, "addresses that are being checked in this organisation")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def send(self, target: str, bodies: Sequence[str], opened: Sequence[Network]) -> Outcome:
        """Tell a service what some bodies (JSON: title, text) say."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(SERVICES_AT_ONCE)
        asked = {**joined([json.loads(body) for body in bodies]), "url": target, "check": False}
        told = await to_thread.run_sync(lambda: self._run(asked, opened, self._within_s), limiter=self._limiter)
        return TAKEN if told else Outcome(None, error=NOT_TAKEN)

    def can_be_read(self, org_id: str, target: str) -> bool:
        """Return whether the library can read an address. Blocks about a second. Errors: `RATE_LIMITED`."""
        with self._checks_of_org.held(org_id):
            if not self._checks.acquire(timeout=CHECK_WAIT_S):
                raise _busy()
            try:
                read = self._run({"url": target, "check": True, "title": "", "text": ""}, (), CHECK_WITHIN_S)
            finally:
                self._checks.release()
        if read is None:
            raise _busy()
        return read

    def close(self) -> None:
        """End what runs."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _run(self, asked: dict[str, Any], opened: Sequence[Network], within_s: float) -> bool | None:
        """Return whether it went well (None: it took too long)."""
        words = json.dumps({**asked, "opened": [str(network) for network in opened]}).encode()
        with self._lock:
            if self._closed:
                return False
            process = subprocess.Popen(
                [sys.executable, "-m", "corral.server.tell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
            )
            self._running.add(process)
        with process:  # its end is waited for, and its pipes are closed
            try:
                process.communicate(words, within_s)
                return process.returncode == 0
            except subprocess.TimeoutExpired:
                log.warning("service_not_told", why="it took too long")
                return None
            finally:
                process.kill()
                with self._lock:
                    self._running.discard(process)


def _busy() -> Refusal:
    return Refusal("RATE_LIMITED", "Many addresses are being checked just now. Try again soon.", retry_after_s=5)


def joined(messages: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return one message that says what several do: each one's title, the first one's text if there is only that."""
    if len(messages) == 1:
        return {"title": messages[0]["title"], "text": messages[0]["text"]}
    lines = [message["title"] for message in messages[:LINES_MAX]]
    if len(messages) > LINES_MAX:
        lines.append(f"and {len(messages) - LINES_MAX} more")
    place = messages[0]["text"].splitlines()[:1]
    return {"title": f"{len(messages)} alerts: {messages[0]['title']} …", "text": "\n".join([*lines, "", *place])}


def _environment() -> dict[str, str]:
    """Nothing of the site's own environment (proxies, the database's password) but where programs and Corral are."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "PYTHONPATH": str(Path(corral.__file__).parents[1]),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
