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
        sa.Column("removed_at", UtcTime(), nullable=True),
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
        sa.Column("machine_limit", sa.Integer(), nullable=True),
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
        sa.Column("journal_floor", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("notified_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("private_targets", sa.JSON(), nullable=False),
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
        "alerts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("about", sa.String(length=200), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=True),
        sa.Column("workspace_id", sa.String(length=36), nullable=True),
        sa.Column("machine_id", sa.String(length=36), nullable=True),
        sa.Column("title", sa.String(length=300), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("opened_at", UtcTime(), nullable=False),
        sa.Column("last_at", UtcTime(), nullable=False),
        sa.Column("told", sa.String(length=10), nullable=False),
        sa.Column("told_at", UtcTime(), nullable=True),
        sa.Column("tell_at", UtcTime(), nullable=True),
        sa.Column("closed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_alerts_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_alerts_org_id_id")),
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index("ix_alerts_about", ["org_id", "kind", "about", "id"], unique=False)
        batch_op.create_index(
            "ix_alerts_machine",
            ["machine_id"],
            unique=False,
            sqlite_where=sa.text("closed_at IS NULL"),
            postgresql_where=sa.text("closed_at IS NULL"),
        )
        batch_op.create_index("ix_alerts_org", ["org_id", "id"], unique=False)
        batch_op.create_index(
            "ix_alerts_waiting",
            ["tell_at"],
            unique=False,
            sqlite_where=sa.text("tell_at IS NOT NULL"),
            postgresql_where=sa.text("tell_at IS NOT NULL"),
        )
        batch_op.create_index(
            "uq_alerts_open",
            ["org_id", "kind", "about"],
            unique=True,
            sqlite_where=sa.text("closed_at IS NULL"),
            postgresql_where=sa.text("closed_at IS NULL"),
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
        "break_glass",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_break_glass_org_id")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_break_glass_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_break_glass")),
    )
    with op.batch_alter_table("break_glass", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_break_glass_org_id"), ["org_id"], unique=False)

    op.create_table(
        "cluster_requests",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("note", sa.String(length=2000), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("answered_at", UtcTime(), nullable=True),
        sa.Column("answer", sa.String(length=20), nullable=True),
        sa.Column("answer_note", sa.String(length=2000), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_cluster_requests_cluster_id")),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_cluster_requests_created_by")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_cluster_requests_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cluster_requests")),
    )
    with op.batch_alter_table("cluster_requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_cluster_requests_org_id"), ["org_id"], unique=False)

    op.create_table(
        "gpu_baselines",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("vendor", sa.String(length=20), nullable=False),
        sa.Column("uuid", sa.String(length=96), nullable=False),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("kernel_boot", sa.String(length=64), nullable=False),
        sa.Column("kernel_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_gpu_baselines_org_id")),
        sa.PrimaryKeyConstraint("org_id", "vendor", "uuid", name=op.f("pk_gpu_baselines")),
    )
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
        "prices",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("valid_from", UtcTime(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("gpu_hour", sa.JSON(), nullable=False),
        sa.Column("vcpu_hour", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ram_gib_hour", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("storage_gib_month", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("set_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_prices_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
        sa.UniqueConstraint("cluster_id", "valid_from", name=op.f("uq_prices_cluster_id_valid_from")),
    )
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
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("queue_version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("joined_at", UtcTime(), nullable=False),
        sa.Column("left_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_tenancies_cluster_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_tenancies_org_id")),
        sa.PrimaryKeyConstraint("cluster_id", "org_id", name=op.f("pk_tenancies")),
    )
    with op.batch_alter_table("tenancies", schema=None) as batch_op:
        batch_op.create_index(
            "uq_tenancies_slug_live",
            ["org_id", "slug"],
            unique=True,
            sqlite_where=sa.text("left_at IS NULL"),
            postgresql_where=sa.text("left_at IS NULL"),
        )

    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("types", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_because", sa.String(length=300), nullable=False),
        sa.Column("failing_since", UtcTime(), nullable=True),
        sa.Column("last_at", UtcTime(), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_webhooks_created_by")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_webhooks_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_webhooks_org_id_id")),
    )
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhooks_org_id"), ["org_id"], unique=False)

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
        "alert_rules",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=True),
        sa.Column("webhook_id", sa.String(length=36), nullable=True),
        sa.Column("target", sa.LargeBinary(), nullable=True),
        sa.Column("target_shown", sa.String(length=300), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("last_at", UtcTime(), nullable=True),
        sa.Column("last_error", sa.String(length=300), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_alert_rules_created_by")),
        sa.ForeignKeyConstraint(["org_id", "webhook_id"], ["webhooks.org_id", "webhooks.id"], name="fk_ar_webhook"),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_alert_rules_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_rules")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_alert_rules_org_id_id")),
    )
    with op.batch_alter_table("alert_rules", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alert_rules_org_id"), ["org_id"], unique=False)

    op.create_table(
        "budget_crossings",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_bc_workspace"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "month", "percent", name=op.f("pk_budget_crossings")),
    )
    op.create_table(
        "budgets",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("amount", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("thresholds", sa.JSON(), nullable=False),
        sa.Column("changed_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_b_workspace"
        ),
        sa.PrimaryKeyConstraint("workspace_id", name=op.f("pk_budgets")),
    )
    with op.batch_alter_table("budgets", schema=None) as batch_op:
        batch_op.create_index("ix_budgets_org", ["org_id"], unique=False)

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
        sa.Column("data_path", sa.String(length=1024), nullable=True),
        sa.Column("data_mount", sa.String(length=1024), nullable=False),
        sa.Column("data_max_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("data_generation", sa.Integer(), nullable=False),
        sa.Column("data_state", sa.String(length=10), nullable=False),
        sa.Column("data_message", sa.String(length=300), nullable=False),
        sa.Column("data_copies", sa.Integer(), nullable=False),
        sa.Column("update_ask", sa.Integer(), nullable=False),
        sa.Column("update_release", sa.String(length=40), nullable=True),
        sa.Column("update_before", sa.String(length=40), nullable=False),
        sa.Column("update_state", sa.String(length=10), nullable=False),
        sa.Column("update_message", sa.String(length=300), nullable=False),
        sa.Column("update_since", UtcTime(), nullable=True),
        sa.Column("kernel_boot", sa.String(length=64), nullable=False),
        sa.Column("kernel_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fleet_version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
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
            "ix_machines_updating",
            ["update_state"],
            unique=False,
            sqlite_where=sa.text("update_state <> ''"),
            postgresql_where=sa.text("update_state <> ''"),
        )
        batch_op.create_index(
            "uq_machines_name_live",
            ["org_id", "cluster_id", "name"],
            unique=True,
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.create_table(
        "reservations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=True),
        sa.Column("starts_at", UtcTime(), nullable=False),
        sa.Column("ends_at", UtcTime(), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("began_at", UtcTime(), nullable=True),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("removed_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_r_tenancy"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_reservations_created_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_reservations_org_id_id")),
    )
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.create_index(
            "ix_reservations_begin",
            ["starts_at"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NULL AND began_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL AND began_at IS NULL"),
        )
        batch_op.create_index(
            "ix_reservations_end",
            ["ends_at"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )
        batch_op.create_index(
            "ix_reservations_live",
            ["cluster_id", "org_id"],
            unique=False,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        )

    op.create_table(
        "updates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("release", sa.String(length=40), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("message", sa.String(length=300), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime(), nullable=True),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_u_tenancy"
        ),
        sa.ForeignKeyConstraint(["created_by"], ["users.id"], name=op.f("fk_updates_created_by")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("org_id", "id", name=op.f("uq_updates_org_id_id")),
    )
    with op.batch_alter_table("updates", schema=None) as batch_op:
        batch_op.create_index("ix_updates_newest", ["cluster_id", "org_id", "created_at"], unique=False)
        batch_op.create_index(
            "uq_updates_running",
            ["cluster_id", "org_id"],
            unique=True,
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
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
        sa.Column("time_left_s", sa.Integer(), nullable=True),
        sa.Column("restart_policy", sa.String(length=20), nullable=False),
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
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("vcpu", sa.Integer(), nullable=True),
        sa.Column("ram_gib", sa.Integer(), nullable=True),
        sa.Column("storage_gib", sa.Integer(), nullable=True),
        sa.Column("gpu_hours_month", sa.Integer(), nullable=True),
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
        sa.Column("gpu_model", sa.String(length=100), nullable=False),
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
        batch_op.create_index("ix_allocations_usage", ["org_id", "released_at"], unique=False)
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
        "deliveries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("webhook_id", sa.String(length=36), nullable=True),
        sa.Column("rule_id", sa.String(length=36), nullable=True),
        sa.Column("alert_id", sa.String(length=36), nullable=True),
        sa.Column("event_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("target_id", sa.String(length=36), nullable=False),
        sa.Column("type", sa.String(length=60), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcTime(), nullable=True),
        sa.Column("delivered_at", UtcTime(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(["org_id", "rule_id"], ["alert_rules.org_id", "alert_rules.id"], name="fk_d_rule"),
        sa.ForeignKeyConstraint(["org_id", "webhook_id"], ["webhooks.org_id", "webhooks.id"], name="fk_d_webhook"),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_deliveries_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index("ix_deliveries_created", ["created_at"], unique=False)
        batch_op.create_index(
            "ix_deliveries_waiting",
            ["target_id", "next_at", "id"],
            unique=False,
            sqlite_where=sa.text("next_at IS NOT NULL"),
            postgresql_where=sa.text("next_at IS NOT NULL"),
        )
        batch_op.create_index("ix_deliveries_webhook", ["webhook_id", "id"], unique=False)

    op.create_table(
        "gpu_faults",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("vendor", sa.String(length=20), nullable=False),
        sa.Column("uuid", sa.String(length=96), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("code", sa.String(length=40), nullable=False),
        sa.Column("evidence", sa.String(length=500), nullable=False),
        sa.Column("since", UtcTime(), nullable=False),
        sa.Column("last_at", UtcTime(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("kernel_boot", sa.String(length=64), nullable=False),
        sa.Column("kernel_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("replaced_at", UtcTime(), nullable=True),
        sa.Column("cleared_at", UtcTime(), nullable=True),
        sa.Column("cleared_by", sa.String(length=100), nullable=True),
        sa.ForeignKeyConstraint(["machine_id"], ["machines.id"], name=op.f("fk_gpu_faults_machine_id")),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_gpu_faults_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_faults")),
    )
    with op.batch_alter_table("gpu_faults", schema=None) as batch_op:
        batch_op.create_index("ix_gpu_faults_machine", ["machine_id", "since"], unique=False)
        batch_op.create_index(
            "uq_gpu_faults_latched",
            ["org_id", "vendor", "uuid", "code"],
            unique=True,
            sqlite_where=sa.text("cleared_at IS NULL"),
            postgresql_where=sa.text("cleared_at IS NULL"),
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
        "reservation_machines",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("reservation_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_rm_machine"),
        sa.ForeignKeyConstraint(
            ["org_id", "reservation_id"], ["reservations.org_id", "reservations.id"], name="fk_rm_r"
        ),
        sa.PrimaryKeyConstraint("reservation_id", "machine_id", name=op.f("pk_reservation_machines")),
    )
    with op.batch_alter_table("reservation_machines", schema=None) as batch_op:
        batch_op.create_index("ix_reservation_machines_machine", ["machine_id"], unique=False)

    op.create_table(
        "reservation_workspaces",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("reservation_id", sa.String(length=36), nullable=False),
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["org_id", "reservation_id"], ["reservations.org_id", "reservations.id"], name="fk_rw_r"
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_rw_workspace"
        ),
        sa.PrimaryKeyConstraint("reservation_id", "workspace_id", name=op.f("pk_reservation_workspaces")),
    )
    op.create_table(
        "update_machines",
        sa.Column("org_id", sa.String(length=36), nullable=False),
        sa.Column("update_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=36), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("message", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_um_machine"),
        sa.ForeignKeyConstraint(["org_id", "update_id"], ["updates.org_id", "updates.id"], name="fk_um_update"),
        sa.PrimaryKeyConstraint("update_id", "machine_id", name=op.f("pk_update_machines")),
    )
    with op.batch_alter_table("update_machines", schema=None) as batch_op:
        batch_op.create_index(
            "ix_update_machines_asked",
            ["update_id"],
            unique=False,
            sqlite_where=sa.text("state = 'asked'"),
            postgresql_where=sa.text("state = 'asked'"),
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
        "workspace_access_models",
        sa.Column("workspace_id", sa.String(length=36), nullable=False),
        sa.Column("cluster_id", sa.String(length=36), nullable=False),
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id", "cluster_id"],
            ["workspace_access.workspace_id", "workspace_access.cluster_id"],
            name="fk_wam_access",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("workspace_id", "cluster_id", "model", name=op.f("pk_workspace_access_models")),
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
