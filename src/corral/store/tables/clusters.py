"""Clusters, each organisation's tenancy in them, and join tokens.

A *tenancy* (cluster, organisation) is the organisation's view of a cluster: its short name
and shown name there. Its row is what placement and everything that changes placement's
rules lock first (design decision 5), and its `version` counts those changes.
"""

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    String,
    Table,
    text,
)

from corral.store.tables.base import id_column, metadata, moment, refers
from corral.store.types import BigInt

clusters = Table(
    "clusters",
    metadata,
    id_column(),
    Column("hosted", Boolean, nullable=False),
    moment("created_at"),
    moment("removed_at", nullable=True),  # a dedicated one that the operator deleted
)
# A site has one hosted cluster.
Index(
    "uq_clusters_hosted",
    clusters.c.hosted,
    unique=True,
    sqlite_where=text("hosted"),
    postgresql_where=text("hosted"),
)

tenancies = Table(
    "tenancies",
    metadata,
    refers("cluster_id", "clusters.id", primary_key=True),
    refers("org_id", "orgs.id", primary_key=True),
    Column("slug", String(63), nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", BigInt, nullable=False, default=0),
    Column("queue_version", BigInt, nullable=False, default=0),  # `version` when what waits last changed
    moment("joined_at"),
    moment("left_at", nullable=True),  # taken out of the organisation; its machines stay enrolled
)
Index(
    "uq_tenancies_slug_live",
    tenancies.c.org_id,
    tenancies.c.slug,
    unique=True,
    sqlite_where=text("left_at IS NULL"),
    postgresql_where=text("left_at IS NULL"),
)

cluster_requests = Table(
    "cluster_requests",
    metadata,
    id_column(),
    refers("org_id", "orgs.id", index=True),
    Column("name", String(100), nullable=False),
    Column("note", String(2000), nullable=False, default=""),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("answered_at", nullable=True),
    Column("answer", String(20)),  # made | declined | withdrawn
    Column("answer_note", String(2000), nullable=False, default=""),
    refers("cluster_id", "clusters.id", nullable=True),  # the cluster that was made for it
)

join_tokens = Table(
    "join_tokens",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("public_id", String(20), nullable=False, unique=True),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("labels", JSON, nullable=False),
    refers("created_by", "users.id", nullable=True),
    moment("created_at"),
    moment("expires_at"),
    moment("revoked_at", nullable=True),
    moment("used_at", nullable=True),
    Column("key_hash", LargeBinary(32)),
    Column("machine_id", String(36)),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_jt_tenancy"),
)
Index("ix_join_tokens_tenancy", join_tokens.c.org_id, join_tokens.c.cluster_id)
