"""The journal: commit order is sequence order (design decision 7)."""

from sqlalchemy import JSON, Boolean, Column, Index, String, Table

from corral.store.tables.base import metadata, moment
from corral.store.types import BigInt

journal = Table(
    "journal",
    metadata,
    Column("seq", BigInt, primary_key=True, autoincrement=True),
    moment("at"),
    Column("type", String(60), nullable=False),
    Column("event", Boolean, nullable=False),
    Column("audit", Boolean, nullable=False),
    Column("org_id", String(36)),
    Column("cluster_id", String(36)),
    Column("workspace_id", String(36)),
    Column("machine_id", String(36)),
    Column("workload_id", String(36)),
    Column("actor_kind", String(20), nullable=False),  # user | machine | site
    Column("actor_id", String(36)),
    Column("actor_name", String(100), nullable=False),
    Column("address", String(64), nullable=False, default=""),
    Column("request_id", String(40), nullable=False, default=""),
    Column("data", JSON, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_journal_org", journal.c.org_id, journal.c.seq)
Index("ix_journal_workspace", journal.c.org_id, journal.c.workspace_id, journal.c.seq)
Index("ix_journal_machine", journal.c.machine_id, journal.c.seq)
Index("ix_journal_workload", journal.c.workload_id, journal.c.seq)
