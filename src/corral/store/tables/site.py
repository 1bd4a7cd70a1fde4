"""The site itself: one row, with its incarnation and the lease that keeps a second process out."""

from sqlalchemy import JSON, CheckConstraint, Column, ForeignKey, Integer, LargeBinary, String, Table

from corral.store.tables.base import metadata, moment
from corral.store.types import BigInt

sites = Table(
    "sites",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incarnation", String(36), nullable=False),
    Column("contact", String(200), nullable=False, default=""),
    Column("hosted_machine_limit", Integer, nullable=False),
    Column("journal_floor", BigInt, nullable=False, default=0),  # events up to this sequence were forgotten by age
    Column("notified_seq", BigInt),  # the journal was read so far for alerts and webhooks; None: not yet
    Column(
        "private_targets", JSON, nullable=False, default=list
    ),  # networks (CIDR) that webhooks may reach though private
    Column("lease_holder", String(64)),
    moment("lease_until", nullable=True),
    moment("created_at"),
    moment("restored_at", nullable=True),
    CheckConstraint("id = 1", name="one_row"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("user_id", String(36), ForeignKey("users.id"), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("route", String(300), nullable=False),
    Column("body_hash", LargeBinary(32), nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", JSON, nullable=False),
    moment("created_at"),
)
