"""A real control plane for tests: uvicorn on a free loopback port, in a thread, always ended.

    with live_server(db) as site:
        httpx.get(site.url + "/healthz")

`intervals` shortens what the product does every few seconds, and `monotonic` replaces the
clock that silence is judged by, so that no test has to wait for a minute.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from sqlalchemy import insert, select

from corral.server.app import create_app
from corral.server.artefact import ArtefactStore
from corral.server.config import Config
from corral.server.serving import uvicorn_config
from corral.store.engine import Database
from corral.store.tables.site import sites
from corral.usecases.context import new_id

T = TypeVar("T")
DEADLINE_S = 20.0
"""How long a test waits for what must happen; never how long it sleeps."""


class Monotonic:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Site:
    """A running control plane."""

    url: str
    """e.g. http://127.0.0.1:41234"""
    ws_url: str
    app: FastAPI
    config: Config
    db: Database
    server: uvicorn.Server

    @property
    def hub(self) -> Any:
        return self.app.state.hub


def ensure_site(db: Database) -> str:
    """Make the site's one row if there is none; return its incarnation."""
    with db.write() as tx:
        row = tx.one(select(sites.c.incarnation))
        if row is not None:
            return str(row["incarnation"])
        incarnation = new_id(tx.now)
        tx.run(insert(sites).values(id=1, incarnation=incarnation, hosted_machine_limit=10, created_at=tx.now))
        return incarnation


@contextmanager
def live_server(
    db: Database,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    artefact: ArtefactStore | None = None,
    **settings: Any,
) -> Iterator[Site]:
    """Run the control plane on a migrated database, serving `artefact`. `settings` are fields of `Config`."""
    ensure_site(db)
    with tempfile.TemporaryDirectory(prefix="corral-site-") as folder, _free_socket() as listening:
        port = listening.getsockname()[1]
        settings = {"state_dir": Path(folder), "every_s": 0.05, "report_every_s": 0.5, "spread_s": 0.0, **settings}
        config = Config(database=str(db.url), host="127.0.0.1", port=port, **settings)
        app = create_app(config, db, monotonic=monotonic, artefact=artefact)
        server = uvicorn.Server(uvicorn_config(app, timeout_graceful_shutdown=5))
        app.state.on_lease_lost = lambda: setattr(server, "should_exit", True)
        thread = threading.Thread(target=_run, args=(server, listening), name="live-server")
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive())
            if not server.started:
                raise RuntimeError("the control plane did not start; its log says why")
            yield Site(f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}", app, config, db, server)
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            if thread.is_alive():
                server.force_exit = True
                thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the control plane did not end"


def _run(server: uvicorn.Server, listening: socket.socket) -> None:
    with suppress(SystemExit):  # its way to say that it did not start
        server.run(sockets=[listening])


@contextmanager
def _free_socket() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        yield listening


def eventually(check: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Return the first true answer of `check`; fails the test when there is none in time."""
    until = time.monotonic() + deadline_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"not true within {deadline_s} s: {check}")
        time.sleep(0.01)


def agent_key() -> str:
    """Return a key as an agent makes it: 256 random bits, hex."""
    return os.urandom(32).hex()
