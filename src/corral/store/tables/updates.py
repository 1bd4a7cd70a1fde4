"""Updates of a cluster's agents in stages: one, a tenth, the rest (spec 10, "Update agents")."""

from sqlalchemy import Column, ForeignKeyConstraint, Index, Integer, String, Table, UniqueConstraint, text

from corral.store.tables.base import id_column, metadata, moment, refers

updates = Table(
    "updates",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("release", String(40), nullable=False),
    Column("stage", Integer, nullable=False, default=0),  # 0: one machine, 1: a tenth, 2: the rest
    Column("message", String(300), nullable=False, default=""),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("ended_at", nullable=True),
    Column("outcome", String(10), nullable=False, default=""),  # "" | done | stopped | failed
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_u_tenancy"),
)
Index("ix_updates_newest", updates.c.cluster_id, updates.c.org_id, updates.c.created_at)
_RUNNING = text("ended_at IS NULL")
Index(
    "uq_updates_running",
    updates.c.cluster_id,
    updates.c.org_id,
    unique=True,
    sqlite_where=_RUNNING,
    postgresql_where=_RUNNING,
)

update_machines = Table(
    "update_machines",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("update_id", String(36), primary_key=True),
    Column("machine_id", String(36), primary_key=True),
    Column("stage", Integer, nullable=False),
    Column("state", String(10), nullable=False),  # waiting | asked | done | failed | left_out
    Column("message", String(300), nullable=False, default=""),
    ForeignKeyConstraint(["org_id", "update_id"], ["updates.org_id", "updates.id"], name="fk_um_update"),
    ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_um_machine"),
)
_ASKED = text("state = 'asked'")
Index("ix_update_machines_asked", update_machines.c.update_id, sqlite_where=_ASKED, postgresql_where=_ASKED)
