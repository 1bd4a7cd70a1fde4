"""Prices of clusters, each from a moment on, and workspaces' monthly budgets.

Money is kept as whole millionths of the currency's unit: no floats.
"""

from sqlalchemy import JSON, Column, ForeignKeyConstraint, Index, Integer, String, Table, UniqueConstraint

from corral.store.tables.base import id_column, metadata, moment, refers
from corral.store.types import BigInt

prices = Table(
    "prices",
    metadata,
    id_column(),
    refers("cluster_id", "clusters.id"),
    moment("valid_from"),
    Column("currency", String(3), nullable=False),
    Column("gpu_hour", JSON, nullable=False),  # {GPU model or "*": millionths}
    Column("vcpu_hour", BigInt, nullable=False),
    Column("ram_gib_hour", BigInt, nullable=False),
    Column("storage_gib_month", BigInt, nullable=False),
    Column("set_by", String(100), nullable=False),
    UniqueConstraint("cluster_id", "valid_from"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("workspace_id", String(36), primary_key=True),
    Column("currency", String(3), nullable=False),
    Column("amount", BigInt, nullable=False),  # millionths a month
    Column("thresholds", JSON, nullable=False),  # percents, ascending
    moment("changed_at"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_b_workspace"),
)
Index("ix_budgets_org", budgets.c.org_id)

budget_crossings = Table(
    "budget_crossings",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("workspace_id", String(36), primary_key=True),
    Column("month", String(7), primary_key=True),  # 2026-11, UTC
    Column("percent", Integer, primary_key=True),
    moment("at"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_bc_workspace"),
)
