"""GPU faults: latches keyed by (organisation, vendor, UUID), and what counters are measured against.

A GPU's UUID is a claim of a machine's root: nothing is unique across tenants (design decision 10).
"""

from sqlalchemy import JSON, Column, Index, Integer, String, Table, text

from corral.store.tables.base import id_column, metadata, moment, refers
from corral.store.types import BigInt

gpu_faults = Table(
    "gpu_faults",
    metadata,
    id_column(),
    refers("org_id", "orgs.id"),
    Column("vendor", String(20), nullable=False),
    Column("uuid", String(96), nullable=False),
    refers("machine_id", "machines.id"),  # where it was seen last
    Column("code", String(40), nullable=False),  # xid_79, ecc_uncorrected, missing …
    Column("evidence", String(500), nullable=False, default=""),  # the line or counter, for people
    moment("since"),
    moment("last_at"),
    Column("count", Integer, nullable=False, default=1),
    Column("kernel_boot", String(64), nullable=False, default=""),  # the last line that said so: of which boot …
    Column("kernel_seq", BigInt, nullable=False, default=-1),  # … and its number; -1: a counter said so
    moment("replaced_at", nullable=True),  # another GPU took its slot: people were told so, once
    moment("cleared_at", nullable=True),
    Column("cleared_by", String(100)),
)
_LATCHED = text("cleared_at IS NULL")
Index(
    "uq_gpu_faults_latched",
    gpu_faults.c.org_id,
    gpu_faults.c.vendor,
    gpu_faults.c.uuid,
    gpu_faults.c.code,
    unique=True,
    sqlite_where=_LATCHED,
    postgresql_where=_LATCHED,
)
Index("ix_gpu_faults_machine", gpu_faults.c.machine_id, gpu_faults.c.since)

gpu_baselines = Table(
    "gpu_baselines",
    metadata,
    refers("org_id", "orgs.id", primary_key=True),
    Column("vendor", String(20), primary_key=True),
    Column("uuid", String(96), primary_key=True),
    Column("counters", JSON, nullable=False),  # {name: value} as judged last, or at the last clear
    Column("kernel_boot", String(64), nullable=False, default=""),  # kernel lines of this boot …
    Column("kernel_seq", BigInt, nullable=False, default=-1),  # … up to this one were cleared
    moment("at"),
)
