"""Opening the database by URL: the only place that knows SQLite from PostgreSQL.

SQLite: WAL, every commit synced, one writer at a time (`BEGIN IMMEDIATE`), readers beside
it. PostgreSQL: a pool. Measured (facts): one writer loses no update and is quicker than
contention.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool
from structlog import get_logger

from corral.domain.errors import Refusal
from corral.store.transaction import Signal, Tx

log = get_logger()

Listener = Callable[[Sequence[Signal], int | None], None]
"""Told after each commit: its signals, and the sequence of its last journal entry (None = no entry)."""

JOURNAL_LOCK = 0x436F7272616C  # "Corral": the advisory lock under which journal entries are appended
MIGRATION_LOCK = JOURNAL_LOCK + 1


def boot_time() -> float:
    """Return seconds since this machine was switched on; goes on while it sleeps or this process is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


DATABASE_URLS = "sqlite:///FILE or postgresql://USER@HOST/NAME"


class BadUrl(ValueError):
    """A database URL that means no database Corral can use; the message says why."""


class Database:
    """One database. `write()` and `read()` give transactions; `clock` replaces its time in tests.

    Errors: `BadUrl`.
    """

    def __init__(self, url: str, *, clock: Callable[[], datetime] | None = None, pool_size: int = 16) -> None:
        self.url = _parsed(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._clock = clock
        self._listeners: list[Listener] = []
        self._writing = threading.Lock()
        self.fenced = ""
        """Why this process may not write any more ("" = it may): another one holds the site's lease."""
        self.writes_until = math.inf
        """On `boot_time`: when its lease is over unless renewed, and another process may write."""
        if self.is_sqlite:
            _make_private(self.url)
            self._writer = _sqlite_engine(self.url, "BEGIN IMMEDIATE", size=1)
            self._reader = _sqlite_engine(self.url, "BEGIN", size=pool_size)
        else:
            self._writer = self._reader = create_engine(
                self.url,
                pool_size=pool_size,
                max_overflow=0,
                pool_pre_ping=True,
                json_serializer=_dumps,
                json_deserializer=msgspec.json.decode,
            )

    @property
    def writer(self) -> Engine:
        """The engine migrations use."""
        return self._writer

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each commit, in the committing thread; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @contextmanager
    def write(self, *, of_lease: bool = False) -> Iterator[Tx]:
        """A read-write transaction: commits at the end, rolls back when the body raises.

        `of_lease`: it takes, renews or gives back the lease, so it needs none. Errors: `UNAVAILABLE` (no lease).
        """
        check = self._check_fence if of_lease else self._check_lease
        check()
        if not self.is_sqlite:
            with self._transaction(self._writer, check) as tx:
                yield tx
            return
        # The lock is held until after the commit; listeners run outside of it.
        with self._locked_transaction(check) as tx:
            yield tx
        self._notify(tx)

    def _check_fence(self) -> None:
        if self.fenced:
            raise Refusal("UNAVAILABLE", self.fenced)

    def _check_lease(self) -> None:
        """A process that was stopped for a while notices here, before it renews its lease or learns that it lost it."""
        self._check_fence()
        if boot_time() > self.writes_until:
            raise Refusal(
                "UNAVAILABLE",
                "This control plane was away and has to renew its lease on the site. Try again in a moment.",
                retry_after_s=5,
            )

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A transaction that only reads."""
        with self._reader.begin() as conn:
            yield Tx(conn, self._now(conn))

    @contextmanager
    def _locked_transaction(self, check: Callable[[], None]) -> Iterator[Tx]:
        with self._writing, self._writer.begin() as conn:
            tx = Tx(conn, self._now(conn))
            yield tx
            tx.append_journal()
            check()

    @contextmanager
    def _transaction(self, engine: Engine, check: Callable[[], None]) -> Iterator[Tx]:
        with engine.begin() as conn:
            tx = Tx(conn, self._now(conn), journal_lock=JOURNAL_LOCK)
            yield tx
            tx.append_journal()
            check()
        self._notify(tx)

    def _notify(self, tx: Tx) -> None:
        if tx.signals or tx.last_seq is not None:
            for listener in tuple(self._listeners):
                try:
                    listener(tuple(dict.fromkeys(tx.signals)), tx.last_seq)
                except Exception:
                    # What is committed stays so: it must not look failed, nor keep the others from hearing of it.
                    log.exception("listener_failed", listener=repr(listener))

    def _now(self, conn: Connection) -> datetime:
        """The database's time: every replica and every rule uses this one clock."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return utc_now()
        moment: datetime = conn.execute(text("SELECT clock_timestamp()")).scalar_one()
        return moment.astimezone(timezone.utc)

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """A connection on which only one process migrates at a time."""
        with self._writing, self._writer.connect() as conn:
            if not self.is_sqlite:
                conn.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
                conn.commit()
            try:
                yield conn
            finally:
                if not self.is_sqlite:
                    conn.rollback()
                    conn.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
                    conn.commit()

    def ping(self) -> None:
        """Ask the database something; raises what it says when it cannot answer."""
        with self._reader.connect() as conn:
            conn.execute(text("SELECT 1"))

    def close(self) -> None:
        self._writer.dispose()
        self._reader.dispose()


def _parsed(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise BadUrl("it is not a URL") from error
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise BadUrl(f"'{url.drivername}' is no kind of database that Corral uses")
    return url


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _make_private(url: URL) -> None:
    """Have SQLite's file readable by its owner only; the files it keeps beside it take over the mode."""
    if url.database and url.database != ":memory:":
        with contextlib.suppress(OSError):  # a folder that is missing or not ours: opening it says so better
            Path(url.database).touch(mode=0o600)
            Path(url.database).chmod(0o600)


def _sqlite_engine(url: URL, begin: str, size: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": 30},
        json_serializer=_dumps,
        json_deserializer=msgspec.json.decode,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver's guess
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-32000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
