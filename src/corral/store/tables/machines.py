"""Machines, when they were last heard, their sessions and their GPUs.

`last_seen` stands in a narrow table of its own: it is flushed in batches (design decision 8).
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

machines = Table(
    "machines",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("name", String(63), nullable=False),
    Column("key_hash", LargeBinary(32), nullable=False, unique=True),
    Column("pool", String(63), nullable=False, default=""),
    Column("site", String(63), nullable=False, default=""),
    Column("rack", String(63), nullable=False, default=""),
    Column("fabric", String(63), nullable=False, default=""),
    Column("labels", JSON, nullable=False),  # the organisation's own keys
    Column("state", String(10), nullable=False),  # idle | up | down
    moment("state_since"),
    Column("cordon_reason", String(200)),
    Column("cordoned_by", String(100)),
    moment("cordoned_at", nullable=True),
    Column("quarantine", String(20)),  # clone | unknown_work; no new work until decided
    Column("quarantine_reason", String(300)),
    Column("behind", Boolean, nullable=False, default=False),  # a back-up was put back; not known yet what runs there
    Column("unknown_work", JSON, nullable=False, default=dict),  # {allocation: {gpus, accepted}}: runs, not known here
    Column("session_epoch", Integer, nullable=False, default=0),
    Column("release", String(40), nullable=False, default=""),
    Column("hostname", String(255), nullable=False, default=""),
    Column("address", String(64), nullable=False, default=""),
    Column("inventory", JSON, nullable=False),
    Column("inventory_digest", String(64), nullable=False, default=""),
    Column("conditions", JSON, nullable=False),  # [{kind, message, blocking}]
    Column("pressure", String(300), nullable=False, default=""),  # first blocking condition: takes no new work
    Column("vcpu", Integer, nullable=False, default=0),
    Column("ram_mib", Integer, nullable=False, default=0),
    Column("storage_mib", Integer, nullable=False, default=0),
    Column("data_path", String(1024)),  # the data location; None: none chosen
    Column("data_mount", String(1024), nullable=False, default=""),  # where the disk chosen is mounted
    Column("data_max_bytes", BigInt, nullable=False, default=0),  # 0: the disk is the limit
    Column("data_generation", Integer, nullable=False, default=0),
    Column("data_state", String(10), nullable=False, default=""),  # "" | making | ready | failed
    Column("data_message", String(300), nullable=False, default=""),
    Column("data_copies", Integer, nullable=False, default=0),  # drive copies that the machine reports there
    Column("update_ask", Integer, nullable=False, default=0),  # counts the asks to update
    Column("update_release", String(40)),  # the release it was asked to update to last; None: none, or it is done
    Column("update_before", String(40), nullable=False, default=""),  # the release it had then
    Column("update_state", String(10), nullable=False, default=""),  # "" | asked | running | failed
    Column("update_message", String(300), nullable=False, default=""),
    moment("update_since", nullable=True),  # it was asked then
    Column("kernel_boot", String(64), nullable=False, default=""),  # kernel lines judged: of which boot …
    Column("kernel_seq", BigInt, nullable=False, default=-1),  # … up to which
    Column("fleet_version", BigInt, nullable=False, default=0),  # the tenancy's version at its last change
    moment("joined_at"),
    moment("removed_at", nullable=True),
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_m_tenancy"),
)
Index(
    "uq_machines_name_live",
    machines.c.org_id,
    machines.c.cluster_id,
    machines.c.name,
    unique=True,
    sqlite_where=text("removed_at IS NULL"),
    postgresql_where=text("removed_at IS NULL"),
)
_DOWN = text("state = 'down' AND removed_at IS NULL")
Index("ix_machines_down", machines.c.state_since, sqlite_where=_DOWN, postgresql_where=_DOWN)
_UPDATING = text("update_state <> ''")
Index("ix_machines_updating", machines.c.update_state, sqlite_where=_UPDATING, postgresql_where=_UPDATING)
Index("ix_machines_fleet", machines.c.cluster_id, machines.c.org_id, machines.c.fleet_version)

liveness = Table(
    "machine_liveness",
    metadata,
    refers("machine_id", "machines.id", primary_key=True),
    moment("last_seen"),
)

machine_sessions = Table(
    "machine_sessions",
    metadata,
    refers("machine_id", "machines.id", primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("instance", String(64), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("pid", BigInt, nullable=False),
    moment("opened_at"),
)

gpus = Table(
    "gpus",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("machine_id", String(36), nullable=False),
    Column("vendor", String(20), nullable=False),
    Column("uuid", String(96), nullable=False),
    Column("slot", String(32), nullable=False, default=""),
    Column("model", String(100), nullable=False, default=""),
    Column("memory_mib", Integer, nullable=False, default=0),
    Column("serial", String(64), nullable=False, default=""),
    Column("state", String(20), nullable=False),  # ok | unreadable | missing | conflict
    Column("detail", Text, nullable=False, default=""),
    Column("busy", Text, nullable=False, default=""),
    Column("gone", Boolean, nullable=False, default=False),  # replaced: kept for history, never listed or assigned
    UniqueConstraint("machine_id", "vendor", "uuid"),
    UniqueConstraint("org_id", "machine_id", "id"),
    ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_g_machine"),
)
# Counting a fleet's GPUs reads this index only.
Index(
    "ix_gpus_counted",
    gpus.c.org_id,
    gpus.c.machine_id,
    sqlite_where=text("gone IS 0"),
    postgresql_where=text("gone IS false"),
)
