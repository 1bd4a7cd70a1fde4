"""`corral site doctor` (spec 60): is the site's ground sound? Changes nothing, says what to do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from corral import __version__
from corral.server import artefact, certificates, tls
from corral.server.config import Config
from corral.server.setup_error import SetupError
from corral.store import health, migrate
from corral.store.database_errors import DatabaseError
from corral.store.engine import DATABASE_URLS, BadUrl, Database

OK, WARNING, BAD = "ok", "warning", "bad"

CLOCK_WARNING_S, CLOCK_BAD_S = 1.0, 5.0
DISK_WARNING, DISK_BAD = 2 * 1024**3, 200 * 1024**2


@dataclass(frozen=True)
class Finding:
    check: str
    result: str
    what: str
    next_step: str = ""


def examine(config: Config) -> Sequence[Finding]:
    """Return every finding, in the order in which to put them right."""
    return [*_database(config), _disk(config.state_dir), _certificate(config), _artefact()]


def _database(config: Config) -> Iterator[Finding]:
    if config.database.startswith("sqlite") and not _sqlite_file(config).exists():
        yield Finding(
            "database", BAD, f"{_sqlite_file(config)} does not exist.", "Start the site once, or check --database."
        )
        return
    try:
        db = Database(config.database)
    except BadUrl as error:
        yield Finding("database", BAD, f"--database: {error}.", f"Give it as {DATABASE_URLS}.")
        return
    where = db.url.render_as_string(hide_password=True)
    try:
        at, wanted = migrate.current(db), migrate.head()
        yield Finding("database", OK, f"{where} answers.")
        yield _schema(db, at, wanted)
        yield _clock(db)
        if at == wanted:
            yield _agents(db)
    except DatabaseError as error:
        why = str(error.orig).strip().splitlines()[0]
        yield Finding("database", BAD, f"{where}: {why}.", "Check --database, and that it runs and lets you in.")
    finally:
        db.close()


def _sqlite_file(config: Config) -> Path:
    return Path(config.database.partition("///")[2].partition("?")[0])


def _schema(db: Database, at: str | None, wanted: str | None) -> Finding:
    if at == wanted:
        return Finding("schema", OK, f"{at}, as this release needs.")
    if at is not None and not migrate.known(at):
        return Finding("schema", BAD, f"{at} is of a newer release than {__version__}.", "Install that release.")
    step = "Start the site: SQLite is migrated by itself." if db.is_sqlite else "Back up, then: corral site migrate."
    return Finding("schema", BAD, f"{at or 'empty'}; this release needs {wanted}.", step)


def _clock(db: Database) -> Finding:
    before = datetime.now(timezone.utc)
    with db.read() as tx:
        theirs = tx.now
    after = datetime.now(timezone.utc)
    # Inside the round trip counts as the same moment.
    apart = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    what = f"{apart:.1f} s from the database's clock."
    if apart < CLOCK_WARNING_S:
        return Finding("clock", OK, what)
    return Finding(
        "clock", BAD if apart >= CLOCK_BAD_S else WARNING, what, "Let both machines take the time from NTP (chrony)."
    )


def _agents(db: Database) -> Finding:
    with db.read() as tx:
        releases = health.releases(tx)
    behind = {release: count for release, count in releases.items() if release not in ("", __version__)}
    total = sum(releases.values())
    if not behind:
        return Finding("agents", OK, f"{total} machines, none behind {__version__}.")
    listed = ", ".join(f"{count} at {release}" for release, count in sorted(behind.items()))
    return Finding(
        "agents",
        WARNING,
        f"{sum(behind.values())} of {total} machines are not at {__version__}: {listed}.",
        "Their admins update them: corral cluster update-agents. No work stops.",
    )


def _disk(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("disk", WARNING, f"{folder} does not exist yet.", "Start the site once, or check --state-dir.")
    free = shutil.disk_usage(folder).free
    what = f"{free / 1024**3:.1f} GiB free at {folder}."
    if free >= DISK_WARNING:
        return Finding("disk", OK, what)
    return Finding("disk", BAD if free < DISK_BAD else WARNING, what, "Make room: a full disk stops every change.")


def _certificate(config: Config) -> Finding:
    cert = config.tls_cert or config.state_dir / "tls" / "server.pem"
    if config.tls_cert is None and not cert.exists():
        return Finding("certificate", OK, "none: the site answers on loopback, or behind a proxy.")
    try:
        ends = tls.expires(cert)
    except SetupError as error:
        return Finding("certificate", BAD, error.message, error.next_step)
    left = ends - datetime.now(timezone.utc)
    what = f"{cert} ends {ends:%Y-%m-%d}, in {left.days} days."
    step = "Renew it." if config.tls_cert else "Restart the site: it renews its own certificate."
    if left >= certificates.RENEW_BEFORE:
        return Finding("certificate", OK, what)
    return Finding("certificate", BAD if left.days < 3 else WARNING, what, step)


def _artefact() -> Finding:
    """Put the artefact together as the site would for the first machine that asks."""
    with tempfile.TemporaryDirectory(prefix="corral-doctor-") as folder:
        try:
            made = artefact.build(Path(folder))
            size = made.pyz.stat().st_size
        except (OSError, PackageNotFoundError) as error:
            return Finding(
                "artefact", BAD, f"the agent cannot be put together: {error}.", "Install Corral again, with pip."
            )
    return Finding("artefact", OK, f"{artefact.PYZ}, {size // 1024} KiB, sha256 {made.sha256[:16]}…")
