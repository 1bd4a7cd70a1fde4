"""Running the control plane as one process: settings to sockets, database, certificate, and a graceful stop.

How it listens stands in `serving`; the short switch interval keeps one CPU-bound thread from holding up the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from structlog import get_logger
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from corral import __version__
from corral.controllers import lease
from corral.domain.ids import shown
from corral.server import logs, tls
from corral.server.app import create_app
from corral.server.behind import OnlyFrom, networks
from corral.server.bodies import link_url
from corral.server.config import Config
from corral.server.serving import tune_collector, uvicorn_config
from corral.server.setup_error import SetupError
from corral.store import lease as lease_rows
from corral.store import migrate
from corral.store.database_errors import DatabaseError
from corral.store.engine import DATABASE_URLS, BadUrl, Database
from corral.usecases import site as site_usecases

log = get_logger()

STOP_WITHIN_S = 5
_NOT_IN_URL = re.compile(r"[^A-Za-z0-9:/.\[\]_~%-]")
"""Links and install lines end in words of their own, and are pasted into shells."""
_RENEW_EVERY_S = 12 * 3600.0


@dataclass(frozen=True)
class Listening:
    """What `open_site` made ready: serve `app` on `socket`."""

    config: Config
    """With the port and public address that it really has."""
    app: FastAPI
    db: Database
    tls: tls.Tls
    socket: socket.socket


def serve(config: Config, say: Callable[[str], None]) -> None:
    """Run the control plane until SIGTERM or SIGINT; `say` shows a line to the operator. Errors: `SetupError`."""
    logs.configure(config.log_level)
    sys.setswitchinterval(0.0005)
    _raise_file_limit()
    with open_site(config) as site:
        server = _Server(_uvicorn_config(site), site, say)
        # uvicorn raises the signal again when it has stopped; the database is still to be closed then.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        try:
            server.run(sockets=[site.socket])
        except SystemExit as error:  # uvicorn's way to say that a part did not start
            raise SetupError("The control plane did not start.", "The log above says why.") from error
        log.info("stopped")


@contextlib.contextmanager
def open_site(config: Config) -> Iterator[Listening]:
    """Bind, migrate, prepare the certificate and make the application; closes the database at the end."""
    _check_public_url(config.public_url)
    make_state_dir(config.state_dir)
    bound = _bind(config)
    with contextlib.closing(bound):
        config = replace(config, port=bound.getsockname()[1])
        secured = tls.prepare(config, datetime.now(timezone.utc))
        config = replace(config, public_url=config.public_url.rstrip("/") or _url(config, secured.on))
        db = open_database(config)
        try:
            _first_rows(db)
            app = create_app(config, db)
            app.state.seal.prepare()
            app.state.ca_pem = secured.ca_pem
            app.state.ca_fingerprint = secured.fingerprint
            app.state.public_url = config.public_url
            yield Listening(config, app, db, secured, bound)
        finally:
            db.close()


@contextlib.contextmanager
def open_unserved(config: Config) -> Iterator[Database]:
    """Open the database of a site that no control plane serves now. Errors: `SetupError`."""
    db = open_database(config)
    try:
        _first_rows(db)
        yield db
    finally:
        db.close()


def open_database(config: Config) -> Database:
    """Open and, on SQLite, migrate. Errors: `SetupError` (not reachable, not migrated, or of a newer release)."""
    db = database_of(config)
    try:
        _migrated(db)
    except BaseException as error:
        db.close()
        if isinstance(error, DatabaseError):
            raise SetupError(
                f"The database does not answer: {str(error.orig).strip()}.",
                f"Check --database ({db.url.render_as_string(hide_password=True)}) and that it runs.",
            ) from error
        raise
    return db


def database_of(config: Config) -> Database:
    """Return the site's database, unopened. Errors: `SetupError` (the URL is none)."""
    try:
        return Database(config.database)
    except BadUrl as error:
        raise SetupError(f"The database cannot be used: {error}.", f"Give --database as {DATABASE_URLS}.") from error


def make_state_dir(folder: Path) -> None:
    """Make the state folder where it is not there yet. Errors: `SetupError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise SetupError(
            f"The state folder {folder} cannot be made: {error.strerror or error}.",
            "Choose another --state-dir, or make this one for the user that runs the site.",
        ) from error
    if not writable:
        raise SetupError(
            f"The state folder {folder} cannot be written to.",
            "Give it to the user that runs the site, or choose another.",
        )


def _check_public_url(url: str) -> None:
    """Refuse an address that no link or install line can be made of. Errors: `SetupError`."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or _NOT_IN_URL.search(url) or "@" in parts.netloc:
        raise SetupError(
            f"--public-url {shown(url)} is no address of a site.", "Give it as https://NAME or https://NAME:PORT."
        )


def _migrated(db: Database) -> None:
    at, wanted = migrate.current(db), migrate.head()
    if at == wanted:
        return
    if at is not None and not migrate.known(at):
        raise SetupError(
            f"The database was made by a newer release (schema {at}; this one knows up to {wanted}).",
            "Install that release, or restore a back-up made before it.",
        )
    if not db.is_sqlite:
        raise SetupError(
            f"The database's schema is {at or 'empty'}; this release needs {wanted}.",
            "Back it up, run `corral site migrate` with the same --database, then start again.",
        )
    migrate.upgrade(db)


def _first_rows(db: Database) -> None:
    """Make the site's row where there is none. Errors: `SetupError` when another process serves this site."""
    with db.write() as tx:
        site_usecases.ensure(tx)
        row = lease_rows.held(tx)
        holder = row["lease_holder"] if row is not None and row["lease_until"] and row["lease_until"] > tx.now else None
    if holder is not None and not lease.is_dead(holder):
        raise SetupError(lease.refusal(db), "")


def _bind(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((config.host, config.port))
    except OSError as error:
        bound.close()
        raise SetupError(
            f"Cannot listen on {config.host} port {config.port}: {error.strerror or error}.",
            "Choose another --port or --host, or stop what listens there.",
        ) from error
    return bound


def _url(config: Config, secure: bool) -> str:
    host = config.host
    if host in ("0.0.0.0", "::", ""):
        host = tls.own_address() or socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{host}:{config.port}"


def _uvicorn_config(site: Listening) -> uvicorn.Config:
    return uvicorn_config(
        _fronted(site.app, site.config),
        loop="uvloop",
        http="httptools",
        timeout_graceful_shutdown=STOP_WITHIN_S,
        proxy_headers=False,
        ssl_certfile=site.tls.cert,
        ssl_keyfile=site.tls.key,
    )


def _fronted(app: ASGIApp, config: Config) -> ASGIApp:
    """Believe forwarded headers from trusted proxies only; with TLS left to a proxy, answer only that proxy."""
    if not config.trusted_proxies:
        return app
    try:
        trusted = networks(config.trusted_proxies)
    except ValueError as error:
        raise SetupError(f"--trusted-proxy: {error}.", "Give an address or a network such as 10.0.0.0/8.") from error
    # uvicorn types ASGI in words of its own, Starlette in others: the same thing.
    behind: ASGIApp = ProxyHeadersMiddleware(app, list(config.trusted_proxies))  # type: ignore[arg-type, assignment]
    return OnlyFrom(behind, trusted) if config.tls == "proxy" else behind


def _raise_file_limit() -> None:
    """Every machine, stream and browser is a file: take all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _greet(site: Listening, say: Callable[[str], None]) -> None:
    """Say the address and, on a fresh site, the one-time link that makes the operator."""
    with site.db.write() as tx:
        link = site_usecases.first_start(tx)
    log.info("started", release=__version__, address=site.config.public_url, tls=site.tls.on)
    say(f"Corral {__version__} answers at {site.config.public_url}")
    if link is not None:
        say("This site has no operator yet. Become it (the link works once, for a day):")
        say(f"  corral login '{link_url(site.app.state, link)}' --login NAME")


class _Server(uvicorn.Server):
    """Tells systemd when it is ready, keeps the certificate fresh, tunes the collector."""

    def __init__(self, config: uvicorn.Config, site: Listening, say: Callable[[str], None]) -> None:
        super().__init__(config)
        self._site = site
        self._say = say
        self._renewal: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        self._renewal = asyncio.create_task(self._keep_fresh())
        # Only now: a process that does not get the site must not make the link of the one that has it worthless.
        await asyncio.to_thread(_greet, self._site, self._say)
        tune_collector()
        notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        if self._renewal is not None:
            self._renewal.cancel()
        await super().shutdown(sockets)

    async def _keep_fresh(self) -> None:
        while self.config.ssl is not None:
            await asyncio.sleep(_RENEW_EVERY_S)
            now = datetime.now(timezone.utc)
            try:
                if await asyncio.to_thread(tls.renew, self._site.config, self._site.tls, now, self.config.ssl):
                    log.info("certificate_renewed")
            except (OSError, SetupError) as error:
                log.error("certificate_not_renewed", why=str(error))


def notify(state: str) -> None:
    """Tell systemd (`Type=notify`), where it listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, contextlib.suppress(OSError):
        channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
