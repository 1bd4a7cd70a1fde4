"""What a workspace may use of a cluster: pools and a GPU quota."""

from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table

from corral.store.tables.base import metadata, moment

access = Table(
    "workspace_access",
    metadata,
    Column("workspace_id", String(36), primary_key=True),
    Column("cluster_id", String(36), primary_key=True),
    Column("org_id", String(36), nullable=False),
    Column("gpu_quota", Integer),
    moment("changed_at"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_wa_workspace"),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_wa_tenancy"),
)

access_pools = Table(
    "workspace_access_pools",
    metadata,
    Column("workspace_id", String(36), primary_key=True),
    Column("cluster_id", String(36), primary_key=True),
    Column("pool", String(63), primary_key=True),
    ForeignKeyConstraint(
        ["workspace_id", "cluster_id"],
        ["workspace_access.workspace_id", "workspace_access.cluster_id"],
        name="fk_wap_access",
        ondelete="CASCADE",
    ),
)
