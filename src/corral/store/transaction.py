"""The unit of work: one transaction, its journal entries, and who is to be told after the commit.

Journal entries are buffered and appended last, under one lock (design decision 7): so commit
order is sequence order, and a reader who has seen sequence n has seen everything before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Executable, RowMapping, insert, text
from sqlalchemy.exc import IntegrityError

from corral.domain.events import TYPES, Class, Entry
from corral.store.quieted import within_limit
from corral.store.tables.journal import journal

Row = RowMapping
"""A row as use cases see it: a mapping from column name to value."""


class Wake(Enum):
    """What a commit changed that somebody connected waits for."""

    DESIRED = "desired"  # id = machine: what should run there
    MACHINE_REMOVED = "machine_removed"  # id = machine
    STREAMS = "streams"  # id = workload or user: open streams must be authorised again
    PLACEMENT = "placement"  # id = cluster, with its org: capacity or a rule changed there; the queue may go on


@dataclass(frozen=True)
class Signal:
    wake: Wake
    id: str
    org: str = ""


@dataclass(frozen=True)
class Scope:
    """Whose rows a question is about. There is no way to ask the store about a tenant without one."""

    org: str


@dataclass(frozen=True)
class Actor:
    """Who acts, through which door."""

    kind: str
    """user | machine | site."""
    id: str | None
    name: str
    address: str = ""
    request_id: str = ""


SITE = Actor("site", None, "site")
"""The control plane's own doing."""


class Tx:
    """One transaction. `now` is the database's time at its beginning."""

    def __init__(self, conn: Connection, now: datetime, journal_lock: int | None = None) -> None:
        self.conn = conn
        self.now = now
        self.signals: list[Signal] = []
        self.last_seq: int | None = None
        self._journal_lock = journal_lock
        self._entries: list[dict[str, Any]] = []

    def record(self, entry: Entry, by: Actor) -> None:
        """Add a journal entry; it is written at the end of this transaction, or not at all."""
        kind = TYPES[entry.type][0]
        subject = entry.subject
        self._entries.append(
            {
                "at": self.now,
                "type": entry.type,
                "event": kind is not Class.AUDIT,
                "audit": kind is not Class.EVENT,
                "org_id": subject.org,
                "cluster_id": subject.cluster,
                "workspace_id": subject.workspace,
                "machine_id": subject.machine,
                "workload_id": subject.workload,
                "actor_kind": by.kind,
                "actor_id": by.id,
                "actor_name": by.name,
                "address": by.address,
                "request_id": by.request_id,
                "data": dict(entry.data),
            }
        )

    def wake(self, wake: Wake, id: str, org: str = "") -> None:
        """Tell listeners after the commit."""
        self.signals.append(Signal(wake, id, org))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that may fail alone: its rows, journal entries and wake-ups go, the rest stays."""
        entries, signals = len(self._entries), len(self.signals)
        try:
            with self.conn.begin_nested():
                yield
        except BaseException:
            del self._entries[entries:]
            del self.signals[signals:]
            raise

    def append_journal(self) -> None:
        """Write the buffered entries; nothing may take a row lock after this. Called once, by the engine."""
        entries = within_limit(self.conn, self.now, self._entries)
        if not entries:
            return
        if self._journal_lock is not None:
            self.conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self._journal_lock})
        result = self.conn.execute(insert(journal).returning(journal.c.seq, sort_by_parameter_order=True), entries)
        self.last_seq = result.scalars().all()[-1]

    # Short ways to ask, so that the noun modules read as what they ask.

    def run(self, statement: Executable, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None) -> int:
        """Execute, with a row's values or many rows'; return how many rows were changed."""
        result = self.conn.execute(statement, rows)
        return int(getattr(result, "rowcount", -1))

    def insert_unless_taken(self, statement: Executable) -> bool:
        """Insert one row; False, with nothing changed, when a unique name or a key it refers to stands against it."""
        try:
            with self.conn.begin_nested():
                self.conn.execute(statement)
        except IntegrityError:
            return False
        return True

    # What every request asks is a statement built once, `given` its parameters: building costs more than asking.

    def one(self, statement: Executable, given: Mapping[str, Any] | None = None) -> RowMapping | None:
        """Return the first row, or None."""
        return self.conn.execute(statement, given).mappings().first()

    def all(self, statement: Executable, given: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        return self.conn.execute(statement, given).mappings().all()

    def scalar(self, statement: Executable, given: Mapping[str, Any] | None = None) -> Any:
        return self.conn.execute(statement, given).scalar()
