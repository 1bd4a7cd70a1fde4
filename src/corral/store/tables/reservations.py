"""Reservations: windows [starts_at, ends_at) of machines and pools, and the workspaces they are for (none: nobody)."""

from sqlalchemy import Column, ForeignKeyConstraint, Index, String, Table, UniqueConstraint, text

from corral.store.tables.base import id_column, metadata, moment, refers

reservations = Table(
    "reservations",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("pool", String(63)),
    moment("starts_at"),
    moment("ends_at"),
    Column("reason", String(200), nullable=False, default=""),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("began_at", nullable=True),  # when its beginning was told
    moment("ended_at", nullable=True),  # when its end was told, or it was removed
    moment("removed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_r_tenancy"),
)
_LIVE = text("ended_at IS NULL")
Index(
    "ix_reservations_live",
    reservations.c.cluster_id,
    reservations.c.org_id,
    sqlite_where=_LIVE,
    postgresql_where=_LIVE,
)
# What the edges' pass looks for: hardly anything ever is due.
_NOT_BEGUN = text("ended_at IS NULL AND began_at IS NULL")
Index("ix_reservations_begin", reservations.c.starts_at, sqlite_where=_NOT_BEGUN, postgresql_where=_NOT_BEGUN)
Index("ix_reservations_end", reservations.c.ends_at, sqlite_where=_LIVE, postgresql_where=_LIVE)

reservation_machines = Table(
    "reservation_machines",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("reservation_id", String(36), primary_key=True),
    Column("machine_id", String(36), primary_key=True),
    ForeignKeyConstraint(["org_id", "reservation_id"], ["reservations.org_id", "reservations.id"], name="fk_rm_r"),
    ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_rm_machine"),
)
Index("ix_reservation_machines_machine", reservation_machines.c.machine_id)

reservation_workspaces = Table(
    "reservation_workspaces",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("reservation_id", String(36), primary_key=True),
    Column("workspace_id", String(36), primary_key=True),
    ForeignKeyConstraint(["org_id", "reservation_id"], ["reservations.org_id", "reservations.id"], name="fk_rw_r"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_rw_workspace"),
)
