"""Alerts, the rules that say who is told, webhooks, and what is to be delivered.

What opens a target (a webhook's secret, a mail or chat address with its password) is kept sealed
with the site's key, which is not in the database.
"""

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from corral.store.tables.base import id_column, metadata, moment, refers
from corral.store.types import BigInt

alerts = Table(
    "alerts",
    metadata,
    id_column(),
    refers("org_id", "orgs.id"),
    Column("kind", String(40), nullable=False),
    Column("about", String(200), nullable=False),  # what it is one alert of: a machine's or workspace's id, a GPU …
    Column("cluster_id", String(36)),
    Column("workspace_id", String(36)),
    Column("machine_id", String(36)),
    Column("title", String(300), nullable=False),
    Column("data", JSON, nullable=False),
    Column("count", Integer, nullable=False, default=1),
    moment("opened_at"),
    moment("last_at"),
    Column("told", String(10), nullable=False, default=""),  # what people know: open | closed ("" = nothing yet)
    moment("told_at", nullable=True),  # since when
    moment("tell_at", nullable=True),  # when they are to be told, unless it changes before; None: nothing waits
    moment("closed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
)
_OPEN = text("closed_at IS NULL")
Index(
    "uq_alerts_open",
    alerts.c.org_id,
    alerts.c.kind,
    alerts.c.about,
    unique=True,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)
Index("ix_alerts_org", alerts.c.org_id, alerts.c.id)
Index("ix_alerts_about", alerts.c.org_id, alerts.c.kind, alerts.c.about, alerts.c.id)
Index("ix_alerts_machine", alerts.c.machine_id, sqlite_where=_OPEN, postgresql_where=_OPEN)
_WAITS = text("tell_at IS NOT NULL")
Index("ix_alerts_waiting", alerts.c.tell_at, sqlite_where=_WAITS, postgresql_where=_WAITS)

webhooks = Table(
    "webhooks",
    metadata,
    id_column(),
    refers("org_id", "orgs.id", index=True),
    Column("name", String(100), nullable=False),
    Column("url", String(2000), nullable=False),
    Column("secret", LargeBinary, nullable=False),  # sealed
    Column("types", JSON, nullable=False),  # event types or "prefix.*"; []: alerts only
    Column("enabled", Boolean, nullable=False, default=True),
    Column("disabled_because", String(300), nullable=False, default=""),  # by the site itself
    moment("failing_since", nullable=True),  # the first of the failures since it last took something
    moment("last_at", nullable=True),  # when it was last sent to
    Column("last_status", Integer),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("removed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
)

alert_rules = Table(
    "alert_rules",
    metadata,
    id_column(),
    refers("org_id", "orgs.id", index=True),
    Column("name", String(100), nullable=False),
    Column("kinds", JSON, nullable=False),  # []: every kind
    Column("cluster_id", String(36)),  # None: every cluster
    Column("webhook_id", String(36)),  # told by webhook; else by `target`
    Column("target", LargeBinary),  # sealed address of a mail or chat service
    Column("target_shown", String(300), nullable=False, default=""),  # without its secrets
    Column("enabled", Boolean, nullable=False, default=True),
    moment("last_at", nullable=True),  # when `target` was last told, or that was tried
    Column("last_error", String(300), nullable=False, default=""),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("removed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["org_id", "webhook_id"], ["webhooks.org_id", "webhooks.id"], name="fk_ar_webhook"),
)

deliveries = Table(
    "deliveries",
    metadata,
    id_column(),
    refers("org_id", "orgs.id"),
    Column("webhook_id", String(36)),
    Column("rule_id", String(36)),
    Column("alert_id", String(36)),
    Column("event_seq", BigInt),
    Column("target_id", String(36), nullable=False),  # the webhook's, or the rule's that has a target of its own
    Column("type", String(60), nullable=False),  # what is told: an event's type, alert.opened, alert.closed, test
    Column("body", Text, nullable=False),  # while it waits; then ""
    moment("created_at"),
    Column("attempts", Integer, nullable=False, default=0),
    moment("next_at", nullable=True),  # None: done or given up
    moment("delivered_at", nullable=True),
    Column("status", Integer),  # of the last answer
    Column("error", String(300), nullable=False, default=""),
    ForeignKeyConstraint(["org_id", "webhook_id"], ["webhooks.org_id", "webhooks.id"], name="fk_d_webhook"),
    ForeignKeyConstraint(["org_id", "rule_id"], ["alert_rules.org_id", "alert_rules.id"], name="fk_d_rule"),
)
_DUE = text("next_at IS NOT NULL")
Index("ix_deliveries_webhook", deliveries.c.webhook_id, deliveries.c.id)
Index(
    "ix_deliveries_waiting",
    deliveries.c.target_id,
    deliveries.c.next_at,
    deliveries.c.id,
    sqlite_where=_DUE,
    postgresql_where=_DUE,
)
Index("ix_deliveries_created", deliveries.c.created_at)
