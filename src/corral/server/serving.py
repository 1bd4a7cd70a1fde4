"""How the control plane listens: one set of uvicorn options for everybody who starts it (facts: measured)."""

from __future__ import annotations

import gc
import logging
from typing import Any

import uvicorn
from starlette.types import ASGIApp

MAX_FRAME = 1024 * 1024
"""Bytes of one WebSocket message; a larger one closes its connection."""
KEEP_ALIVE_S = 75
"""Longer than the 10 s between an agent's requests, so that connections are used again."""
PING_EVERY_S = 30.0
"""Keeps proxies in between from closing what is silent. No answer is waited for: a pong comes behind the data, so a
reader that pauses (a stopped download, ^Z) gives none for as long as it likes. TCP finds the dead, and agents' sessions
have a silence of their own."""


def uvicorn_config(app: ASGIApp, **given: Any) -> uvicorn.Config:
    """Return the options to serve `app` with; `given` adds address, TLS and so on."""
    options: dict[str, Any] = {
        "ws": "websockets-sansio",
        "ws_max_size": MAX_FRAME,
        "ws_per_message_deflate": False,
        "ws_ping_interval": PING_EVERY_S,
        "ws_ping_timeout": None,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "lifespan": "on",
        **given,
    }
    config = uvicorn.Config(app, **options)
    complaints = logging.getLogger("uvicorn.error")
    if not any(isinstance(known, NotAFault) for known in complaints.filters):
        complaints.addFilter(NotAFault())
    return config


def tune_collector() -> None:
    """Keep the collector from walking every session: with 10,000 of them the default pauses 0.4 s at a time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


class NotAFault(logging.Filter):
    """Drops uvicorn's complaint about a WebSocket that was answered with a plain HTTP error: that is an answer too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "ASGI callable returned without completing handshake."
