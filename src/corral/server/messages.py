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
from corral.domain.targets import Network
from corral.domain.webhooks import TAKEN, Outcome

log = get_logger()

AT_ONCE = 6
WITHIN_S = 20.0
LINES_MAX = 20
NOT_TAKEN = (
    "The service did not take it: check the address and what opens it; its host may be one that the site may not reach."
)
"""All that a tenant learns: what a service answered may tell of the site's network."""


class Messages:
    """At most `AT_ONCE` at a time, since each is a process. From the loop, or from threads."""

    def __init__(self, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._limiter: CapacityLimiter | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def send(self, target: str, bodies: Sequence[str], opened: Sequence[Network]) -> Outcome:
        """Tell a service what some bodies (JSON: title, text) say."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(AT_ONCE)
        asked = {**joined([json.loads(body) for body in bodies]), "url": target, "check": False}
        told = await to_thread.run_sync(lambda: self._run(asked, opened), limiter=self._limiter)
        return TAKEN if told else Outcome(None, error=NOT_TAKEN)

    def can_be_read(self, target: str) -> bool:
        """Return whether the library can read an address. Blocks about a second."""
        return self._run({"url": target, "check": True, "title": "", "text": ""}, ())

    def close(self) -> None:
        """End what runs."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _run(self, asked: dict[str, Any], opened: Sequence[Network]) -> bool:
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
        try:
            process.communicate(words, self._within_s)
        except subprocess.TimeoutExpired:
            log.warning("service_not_told", why="it took too long")
        finally:
            process.kill()
            process.communicate()
            with self._lock:
                self._running.discard(process)
        return process.returncode == 0


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
