"""What a workspace may use of a cluster: pools and its quota (None: no limit)."""

from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table

from corral.store.tables.base import metadata, moment

access = Table(
    "workspace_access",
    metadata,
    Column("workspace_id", String(36), primary_key=True),
    Column("cluster_id", String(36), primary_key=True),
    Column("org_id", String(36), nullable=False),
    Column("gpus", Integer),
    Column("vcpu", Integer),
    Column("ram_gib", Integer),
    Column("storage_gib", Integer),
    Column("gpu_hours_month", Integer),
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

access_models = Table(
    "workspace_access_models",
    metadata,
    Column("workspace_id", String(36), primary_key=True),
    Column("cluster_id", String(36), primary_key=True),
    Column("model", String(100), primary_key=True),
    Column("gpus", Integer, nullable=False),
    ForeignKeyConstraint(
        ["workspace_id", "cluster_id"],
        ["workspace_access.workspace_id", "workspace_access.cluster_id"],
        name="fk_wam_access",
        ondelete="CASCADE",
    ),
)
