"""Break-glass: the operator looks into a tenant for a while, with a reason that the tenant sees (spec 05)."""

from sqlalchemy import Column, String, Table

from corral.store.tables.base import id_column, metadata, moment, refers

break_glass = Table(
    "break_glass",
    metadata,
    id_column(),
    refers("org_id", "orgs.id", index=True),
    refers("user_id", "users.id"),
    Column("reason", String(500), nullable=False),
    moment("created_at"),
    moment("expires_at"),
    moment("ended_at", nullable=True),
)
