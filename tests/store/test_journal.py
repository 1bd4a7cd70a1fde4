"""The journal: commit order is sequence order; a reader misses nothing and sees nothing twice (spec 60, line 9)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.domain.events import Entry, Subject
from corral.store import journal
from corral.store.engine import Database
from corral.store.journal import Filter
from corral.store.transaction import SITE, Scope

WRITERS, READERS, EACH = 16, 4, 30


def _append(db: Database, writer: int) -> None:
    for number in range(EACH):
        with db.write() as tx:
            tx.record(Entry("site.changed", Subject(), {"writer": writer, "number": number}), SITE)
            tx.record(Entry("site.changed", Subject(), {"writer": writer, "number": number, "second": True}), SITE)


def _follow(db: Database, done: threading.Event) -> list[int]:
    """Read as a tailer does: ask for what is after the last seen, until the writers are done and nothing is left."""
    seen: list[int] = []
    while True:
        finished = done.is_set()
        with db.read() as tx:
            rows = journal.after(tx, seen[-1] if seen else 0, 50)
        seen.extend(row["seq"] for row in rows)
        if finished and not rows:
            return seen


def test_commit_order_is_sequence_order_for_16_writers_and_4_readers(db: Database) -> None:
    done = threading.Event()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        readers = [pool.submit(_follow, db, done) for _ in range(READERS)]
        writers = [pool.submit(_append, db, number) for number in range(WRITERS)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        results = [reader.result() for reader in readers]
    with db.read() as tx:
        everything = [row["seq"] for row in journal.after(tx, 0, 10_000)]
    assert len(everything) == WRITERS * EACH * 2
    for seen in results:
        assert seen == everything


def test_entries_of_a_transaction_that_fails_are_not_written(db: Database) -> None:
    with pytest.raises(ValueError, match="on purpose"), db.write() as tx:
        tx.record(Entry("site.changed", Subject()), SITE)
        raise ValueError("on purpose")
    with db.read() as tx:
        assert journal.newest(tx) == 0


_ids = st.sampled_from(["a", "b", None])
_entries = st.tuples(
    st.sampled_from(["workload.active", "workload.created", "cluster.node.up", "org.changed"]),
    st.builds(Subject, org=_ids, cluster=_ids, workspace=_ids, machine=_ids, workload=_ids),
)
_filters = st.builds(
    Filter,
    view=st.sampled_from(["event", "audit"]),
    types=st.lists(st.sampled_from(["workload.*", "workload.active", "cluster.*", "org.changed", "work%"]), max_size=2),
    workspaces=st.none() | st.frozensets(st.sampled_from(["a", "b"])),
    clusters=st.none() | st.lists(_ids.filter(bool), max_size=2),
    machine=_ids,
    workload=_ids,
    actor=st.sampled_from([None, "site", "nobody"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(_entries, max_size=8), _filters)
def test_a_filter_means_the_same_in_memory_as_in_sql(
    sqlite_db: Database, entries: list[tuple[str, Subject]], want: Filter
) -> None:
    with sqlite_db.write() as tx:
        before = journal.newest(tx)
        for type, subject in entries:
            tx.record(Entry(type, subject), SITE)
    with sqlite_db.read() as tx:
        everything = journal.after(tx, before, 100)
        asked = journal.between(tx, Scope("a"), want, before, before + 100, 100)
    assert [row["seq"] for row in everything if journal.matches(row, Scope("a"), want)] == [r["seq"] for r in asked]


def test_an_event_type_nobody_documented_is_refused() -> None:
    with pytest.raises(ValueError, match="undocumented"):
        Entry("machine.exploded", Subject())
