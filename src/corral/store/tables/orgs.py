"""Organisations, their members, workspaces and the people in them."""

from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table, UniqueConstraint, text
from sqlalchemy import Index as Idx

from corral.store.tables.base import id_column, metadata, moment, refers

orgs = Table(
    "orgs",
    metadata,
    id_column(),
    Column("slug", String(63), nullable=False),
    Column("name", String(100), nullable=False),
    Column("contact", String(200), nullable=False, default=""),
    Column("machine_limit", Integer),  # on the hosted cluster, set by the operator; None: the site's
    moment("created_at"),
    moment("removed_at", nullable=True),  # its audit is kept for ever, so the row is too; the short name is free again
)
Idx(
    "uq_orgs_slug_live",
    orgs.c.slug,
    unique=True,
    sqlite_where=text("removed_at IS NULL"),
    postgresql_where=text("removed_at IS NULL"),
)

members = Table(
    "members",
    metadata,
    refers("org_id", "orgs.id", primary_key=True),
    refers("user_id", "users.id", primary_key=True, index=True),
    Column("role", String(20), nullable=False),
    moment("joined_at"),
)

workspaces = Table(
    "workspaces",
    metadata,
    id_column(),
    refers("org_id", "orgs.id"),
    Column("slug", String(63), nullable=False),
    Column("name", String(100), nullable=False),
    moment("created_at"),
    moment("removed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
)
Idx(
    "uq_workspaces_slug_live",
    workspaces.c.org_id,
    workspaces.c.slug,
    unique=True,
    sqlite_where=text("removed_at IS NULL"),
    postgresql_where=text("removed_at IS NULL"),
)

workspace_members = Table(
    "workspace_members",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("workspace_id", String(36), primary_key=True),
    Column("user_id", String(36), primary_key=True),
    Column("part", String(20), nullable=False),  # lead | member
    moment("since"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_wm_workspace"),
    ForeignKeyConstraint(["org_id", "user_id"], ["members.org_id", "members.user_id"], name="fk_wm_member"),
)
