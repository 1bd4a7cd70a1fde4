"""The first schema."""

import sqlalchemy as sa
from alembic import op

from corral.store.types import UtcTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("hosted", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
    )
    with op.batch_alter_table("clusters", schema=None) as batch_op:
        batch_op.create_index(
            "uq_clusters_hosted",
            ["hosted"],
            unique=True,
            sqlite_where=sa.text("hosted"),
            postgresql_where=sa.text("hosted"),
        )

    op.create_table(
        "journal",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.Column("type", sa.String(length=60), nullable=False),
        sa.Column("event", sa.Boolean(), nullable=False),
        sa.Column("audit", sa.Boolean(), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=True),
        sa.Column("cluster_id", sa.String(length=36), nullable=True),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("machine_id", sa.String(length=36), nullable=True),
        sa.Column("workload_id", sa.String(length=36), nullable=True),
        sa.Column("actor_kind", sa.String(length=20), nullable=False),
        sa.Column("actor_id", sa.String(length=36), nullable=True),
        sa.Column("actor_name", sa.String(length=100), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=40), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_journal")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("journal", schema=None) as batch_op:
        batch_op.create_index("ix_journal_machine", ["machine_id", "seq"], unique=False)
        batch_op.create_index("ix_journal_org", ["org_id", "seq"], unique=False)
        batch_op.create_index("ix_journal_workload", ["workload_id", "seq"], unique=False)
        batch_op.create_index("ix_journal_workspace", ["org_id", "workspace_id", "seq"], unique=False)

    op.create_table(
        "orgs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("contact", sa.String(length=200), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_orgs")),
    )
    with op.batch_alter_table("orgs", schema=None) as batch_op:
        batch_op.create_index(
            "uq_orgs_slug_live",
            ["slug"],
            unique=True,
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.create_table(
        "sites",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(length=36), nullable=False),
        sa.Column("contact", sa.String(length=200), nullable=False),
        sa.Column("hosted_machine_limit", sa.Integer(), nullable=False),
        sa.Column("lease_holder", sa.String(length=64), nullable=True),
        sa.Column("lease_until", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("restored_at", UtcTime(), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_sites_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sites")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("login", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("password_hash", sa.String(length=300), nullable=True),
        sa.Column("operator", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("login", name=op.f("uq_users_login")),
    )
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("public_id", sa.String(length=20), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("from_login", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.Column("revoked_at", UtcTime(), nullable=True),
        sa.Column("last_used_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_tokens_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("public_id", name=op.f("uq_api_tokens_public_id")),
    )
    with op.batch_alter_table("api_tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_tokens_user_id"), ["user_id"], unique=False)

    op.create_table(
        "idempotency",
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("route", sa.String(length=300), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_idempotency_user_id")),
        sa.PrimaryKeyConstraint("user_id", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "links",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("org_id", sa.String(length=36), nullable=True),
        sa.Column("role", sa.String(length=20), nullable=True),
        sa.Column("login", sa.String(length=100), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.Column("revoked_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_links_created_by")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_links_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_links_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_links")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_links_secret_hash")),
    )
    op.create_table(
        "members",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("joined_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_members_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_members_user_id")),
        sa.PrimaryKeyConstraint("org_id", "user_id", name=op.f("pk_members")),
    )
    with op.batch_alter_table("members", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_members_user_id"), ["user_id"], unique=False)

    op.create_table(
        "ssh_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("public_key", sa.String(length=9000), nullable=False),
        sa.Column("fingerprint", sa.String(length=60), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_ssh_keys_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ssh_keys")),
        sa.UniqueConstraint("user_id", "fingerprint", name=op.f("uq_ssh_keys_user_id_fingerprint")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_ssh_keys_user_id_name")),
    )
    with op.batch_alter_table("ssh_keys", schema=None) as batch_op:
        batch_op.create_index("ix_ssh_keys_user_id", ["user_id"], unique=False)

    op.create_table(
        "tenancies",
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("queue_version", sa.Integer(), nullable=False),
        sa.Column("joined_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_tenancies_cluster_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_tenancies_org_id")),
        sa.PrimaryKeyConstraint("cluster_id", "org_id", name=op.f("pk_tenancies")),
        sa.UniqueConstraint("org_id", "slug", name=op.f("uq_tenancies_org_id_slug")),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_workspaces_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_workspaces_org_id_id")),
    )
    with op.batch_alter_table("workspaces", schema=None) as batch_op:
        batch_op.create_index(
            "uq_workspaces_slug_live",
            ["org_id", "slug"],
            unique=True,
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.create_table(
        "join_tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("public_id", sa.String(length=20), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("revoked_at", UtcTime(), nullable=True),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.Column("key_hash", sa.LargeBinary(length=32), nullable=True),
        sa.Column("machine_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_jt_tenancy"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_join_tokens_created_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_join_tokens")),
        sa.UniqueConstraint("public_id", name=op.f("uq_join_tokens_public_id")),
    )
    with op.batch_alter_table("join_tokens", schema=None) as batch_op:
        batch_op.create_index("ix_join_tokens_tenancy", ["org_id", "cluster_id"], unique=False)

    op.create_table(
        "machines",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.Column("site", sa.String(length=63), nullable=False),
        sa.Column("rack", sa.String(length=63), nullable=False),
        sa.Column("fabric", sa.String(length=63), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("state_since", UtcTime(), nullable=False),
        sa.Column("cordon_reason", sa.String(length=200), nullable=True),
        sa.Column("cordoned_by", sa.String(length=100), nullable=True),
        sa.Column("cordoned_at", UtcTime(), nullable=True),
        sa.Column("quarantine", sa.String(length=20), nullable=True),
        sa.Column("quarantine_reason", sa.String(length=300), nullable=True),
        sa.Column("behind", sa.Boolean(), nullable=False),
        sa.Column("unknown_work", sa.JSON(), nullable=False),
        sa.Column("session_epoch", sa.Integer(), nullable=False),
        sa.Column("release", sa.String(length=40), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("inventory_digest", sa.String(length=64), nullable=False),
        sa.Column("conditions", sa.JSON(), nullable=False),
        sa.Column("pressure", sa.String(length=300), nullable=False),
        sa.Column("vcpu", sa.Integer(), nullable=False),
        sa.Column("ram_mib", sa.Integer(), nullable=False),
        sa.Column("storage_mib", sa.Integer(), nullable=False),
        sa.Column("fleet_version", sa.Integer(), nullable=False),
        sa.Column("joined_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_m_tenancy"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_machines")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_machines_key_hash")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_machines_org_id_id")),
    )
    with op.batch_alter_table("machines", schema=None) as batch_op:
        batch_op.create_index(
            "ix_machines_down",
            ["state_since"],
            unique=False,
            sqlite_where=sa.text("state = 'down' AND removed_at IS NULL"),
            postgresql_where=sa.text("state = 'down' AND removed_at IS NULL"),
        )
        batch_op.create_index("ix_machines_fleet", ["cluster_id", "org_id", "fleet_version"], unique=False)
        batch_op.create_index(
            "uq_machines_name_live",
            ["org_id", "cluster_id", "name"],
            unique=True,
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.create_table(
        "workloads",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_since", UtcTime(), nullable=False),
        sa.Column("step", sa.String(length=20), nullable=False),
        sa.Column("step_since", UtcTime(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("seen", sa.Text(), nullable=False),
        sa.Column("image", sa.String(length=300), nullable=False),
        sa.Column("ask", sa.JSON(), nullable=False),
        sa.Column("time_limit_s", sa.Integer(), nullable=True),
        sa.Column("queued", sa.Boolean(), nullable=False),
        sa.Column("queue_no", sa.Integer(), nullable=True),
        sa.Column("must_end_by", UtcTime(), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("stop_asked_at", UtcTime(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_w_tenancy"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_workloads_created_by")),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_w_workspace"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_workloads_org_id_id")),
    )
    with op.batch_alter_table("workloads", schema=None) as batch_op:
        batch_op.create_index(
            "ix_workloads_out_of_sync",
            ["id"],
            unique=False,
            sqlite_where=sa.text("state = 'out_of_sync'"),
            postgresql_where=sa.text("state = 'out_of_sync'"),
        )
        batch_op.create_index(
            "ix_workloads_queue",
            ["cluster_id", "org_id"],
            unique=False,
            sqlite_where=sa.text("queued AND ended_at IS NULL"),
            postgresql_where=sa.text("queued AND ended_at IS NULL"),
        )
        batch_op.create_index(
            "uq_workloads_name_live",
            ["workspace_id", "kind", "name"],
            unique=True,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )

    op.create_table(
        "workspace_access",
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("gpu_quota", sa.Integer(), nullable=True),
        sa.Column("changed_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_wa_tenancy"
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_wa_workspace"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "cluster_id", name=op.f("pk_workspace_access")),
    )
    op.create_table(
        "workspace_members",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("part", sa.String(length=20), nullable=False),
        sa.Column("since", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["org_id", "user_id"], ["members.org_id", "members.user_id"], name="fk_wm_member"),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_wm_workspace"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "user_id", name=op.f("pk_workspace_members")),
    )
    op.create_table(
        "allocations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("workload_id", sa.String(length=36), nullable=False),
        sa.Column("generation", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("vcpu", sa.Integer(), nullable=False),
        sa.Column("ram_mib", sa.Integer(), nullable=False),
        sa.Column("storage_mib", sa.Integer(), nullable=False),
        sa.Column("placed_at", UtcTime(), nullable=False),
        sa.Column("ran_at", UtcTime(), nullable=True),
        sa.Column("must_end_by", UtcTime(), nullable=True),
        sa.Column("stop_asked_at", UtcTime(), nullable=True),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.Column("release_reason", sa.String(length=30), nullable=True),
        sa.Column("seen_state", sa.String(length=20), nullable=False),
        sa.Column("seen_message", sa.Text(), nullable=False),
        sa.Column("seen_gpus", sa.JSON(), nullable=False),
        sa.Column("host_key", sa.String(length=1000), nullable=False),
        sa.Column("oom_kills", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.Column("mismatch_since", UtcTime(), nullable=True),
        sa.Column("lingers_since", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_a_machine"),
        sa.ForeignKeyConstraint(["org_id", "workload_id"], ["workloads.org_id", "workloads.id"], name="fk_a_workload"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_allocations_org_id_id")),
    )
    with op.batch_alter_table("allocations", schema=None) as batch_op:
        batch_op.create_index(
            "ix_allocations_differ",
            ["mismatch_since"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL AND mismatch_since IS NOT NULL"),
            postgresql_where=sa.text("released_at IS NULL AND mismatch_since IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_allocations_lingers",
            ["machine_id"],
            unique=False,
            sqlite_where=sa.text("lingers_since IS NOT NULL"),
            postgresql_where=sa.text("lingers_since IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_allocations_machine_live",
            ["machine_id"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )
        batch_op.create_index(
            "ix_allocations_must_end",
            ["must_end_by"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL AND stop_asked_at IS NULL AND must_end_by IS NOT NULL"),
            postgresql_where=sa.text("released_at IS NULL AND stop_asked_at IS NULL AND must_end_by IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_allocations_stopping",
            ["stop_asked_at"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL AND stop_asked_at IS NOT NULL"),
            postgresql_where=sa.text("released_at IS NULL AND stop_asked_at IS NOT NULL"),
        )
        batch_op.create_index("ix_allocations_workload", ["workload_id"], unique=False)
        batch_op.create_index(
            "ix_allocations_workspace_live",
            ["workspace_id"],
            unique=False,
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )
        batch_op.create_index(
            "uq_allocations_workload_live",
            ["workload_id"],
            unique=True,
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )

    op.create_table(
        "gpus",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("vendor", sa.String(length=20), nullable=False),
        sa.Column("uuid", sa.String(length=96), nullable=False),
        sa.Column("slot", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("serial", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("busy", sa.Text(), nullable=False),
        sa.Column("gone", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_g_machine"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpus")),
        sa.UniqueConstraint("machine_id", "vendor", "uuid", name=op.f("uq_gpus_machine_id_vendor_uuid")),
        sa.UniqueConstraint("org_id", "machine_id", "id", name=op.f("uq_gpus_org_id_machine_id_id")),
    )
    with op.batch_alter_table("gpus", schema=None) as batch_op:
        batch_op.create_index(
            "ix_gpus_counted",
            ["org_id", "machine_id"],
            unique=False,
            sqlite_where=sa.text("gone IS 0"),
            postgresql_where=sa.text("gone IS false"),
        )

    op.create_table(
        "machine_liveness",
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("last_seen", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["machine_id"], ["machines.id"], name=op.f("fk_machine_liveness_machine_id")),
        sa.PrimaryKeyConstraint("machine_id", name=op.f("pk_machine_liveness")),
    )
    op.create_table(
        "machine_sessions",
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("opened_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["machine_id"], ["machines.id"], name=op.f("fk_machine_sessions_machine_id")),
        sa.PrimaryKeyConstraint("machine_id", "epoch", name=op.f("pk_machine_sessions")),
    )
    op.create_table(
        "workload_ssh_keys",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("workload_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["ssh_keys.id"], name=op.f("fk_workload_ssh_keys_key_id")),
        sa.ForeignKeyConstraint(["org_id", "workload_id"], ["workloads.org_id", "workloads.id"], name="fk_wk_workload"),
        sa.PrimaryKeyConstraint("workload_id", "key_id", name=op.f("pk_workload_ssh_keys")),
    )
    op.create_table(
        "workspace_access_pools",
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id", "cluster_id"],
            ["workspace_access.workspace_id", "workspace_access.cluster_id"],
            name="fk_wap_access",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("workspace_id", "cluster_id", "pool", name=op.f("pk_workspace_access_pools")),
    )
    op.create_table(
        "allocation_log",
        sa.Column("allocation_id", sa.String(length=36), nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["allocation_id"], ["allocations.id"], name=op.f("fk_allocation_log_allocation_id")),
        sa.PrimaryKeyConstraint("allocation_id", "n", name=op.f("pk_allocation_log")),
    )
    op.create_table(
        "gpu_holds",
        sa.Column("allocation_id", sa.String(length=36), nullable=False),
        sa.Column("gpu_id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("released_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["allocation_id"], ["allocations.id"], name=op.f("fk_gpu_holds_allocation_id")),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_gpu_holds_gpu_id")),
        sa.ForeignKeyConstraint(
            ["org_id", "machine_id", "gpu_id"], ["gpus.org_id", "gpus.machine_id", "gpus.id"], name="fk_gh_gpu"
        ),
        sa.PrimaryKeyConstraint("allocation_id", "gpu_id", name=op.f("pk_gpu_holds")),
    )
    with op.batch_alter_table("gpu_holds", schema=None) as batch_op:
        batch_op.create_index(
            "uq_gpu_holds_live",
            ["gpu_id"],
            unique=True,
            sqlite_where=sa.text("released_at IS NULL"),
            postgresql_where=sa.text("released_at IS NULL"),
        )
