"""Workloads, their allocations, and each allocation's hold on its GPUs.

The last guards of "a GPU is in at most one live allocation" stand here: the partial unique
index on live holds, and composite keys that keep an allocation on its own organisation's machine.
`uq_allocations_workload_live` keeps a workload from being placed twice: every kind there is today
runs on one machine. A kind that runs on several needs it by workload and part.
"""

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from corral.store.tables.base import id_column, metadata, moment, refers
from corral.store.types import BigInt

workloads = Table(
    "workloads",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("workspace_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("kind", String(30), nullable=False),
    Column("name", String(63), nullable=False),
    Column("state", String(20), nullable=False),
    moment("state_since"),
    Column("step", String(20), nullable=False, default=""),
    moment("step_since", nullable=True),
    Column("reason", Text, nullable=False, default=""),  # why it waits, failed, or is out of sync
    Column("wanted", Text, nullable=False, default=""),  # out of sync: what was asked …
    Column("seen", Text, nullable=False, default=""),  # … and what the machine reports
    Column("image", String(300), nullable=False),
    Column("ask", JSON, nullable=False),  # {gpus, vcpu, ram_mib, storage_mib, machine, pool, gpu_model, drives}
    Column("time_limit_s", Integer),
    Column("time_left_s", Integer),  # of the limit, when it was last placed and lost its machine; None: all of it
    Column("restart_policy", String(20), nullable=False, default="never"),  # never | on_machine_loss
    Column("queued", Boolean, nullable=False, default=False),  # waits for capacity
    Column("queue_no", Integer),  # its place among those of its tenancy that wait: lower is earlier
    moment("must_end_by", nullable=True),
    refers("created_by", "users.id"),
    moment("created_at"),
    moment("stop_asked_at", nullable=True),
    Column("stop_reason", Text),
    moment("ended_at", nullable=True),
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["org_id", "workspace_id"], ["workspaces.org_id", "workspaces.id"], name="fk_w_workspace"),
    ForeignKeyConstraint(["cluster_id", "org_id"], ["tenancies.cluster_id", "tenancies.org_id"], name="fk_w_tenancy"),
)
Index(
    "uq_workloads_name_live",
    workloads.c.workspace_id,
    workloads.c.kind,
    workloads.c.name,
    unique=True,
    sqlite_where=text("ended_at IS NULL"),
    postgresql_where=text("ended_at IS NULL"),
)
Index(
    "ix_workloads_queue",
    workloads.c.cluster_id,
    workloads.c.org_id,
    sqlite_where=text("queued AND ended_at IS NULL"),
    postgresql_where=text("queued AND ended_at IS NULL"),
)
# What the clock's pass looks for each second; hardly anything ever is in it.
_OUT_OF_SYNC = text("state = 'out_of_sync'")
Index("ix_workloads_out_of_sync", workloads.c.id, sqlite_where=_OUT_OF_SYNC, postgresql_where=_OUT_OF_SYNC)

allocations = Table(
    "allocations",
    metadata,
    id_column(),
    Column("org_id", String(36), nullable=False),
    Column("cluster_id", String(36), nullable=False),
    Column("workspace_id", String(36), nullable=False),
    Column("machine_id", String(36), nullable=False),
    Column("workload_id", String(36), nullable=False),
    Column("generation", BigInt, nullable=False, default=1),
    Column("gpus", Integer, nullable=False),
    Column("gpu_model", String(100), nullable=False, default=""),  # all of its GPUs are of one; "": it has none
    Column("vcpu", Integer, nullable=False),
    Column("ram_mib", Integer, nullable=False),
    Column("storage_mib", Integer, nullable=False),
    moment("placed_at"),
    moment("ran_at", nullable=True),  # when its machine first reported it as asked; None: it never ran
    moment("must_end_by", nullable=True),
    moment("stop_asked_at", nullable=True),
    moment("released_at", nullable=True),
    Column("release_reason", String(30)),  # confirmed | failed | lost
    Column("seen_state", String(20), nullable=False, default=""),
    Column("seen_message", Text, nullable=False, default=""),
    Column("seen_gpus", JSON, nullable=False),
    Column("host_key", String(1000), nullable=False, default=""),
    Column("oom_kills", Integer, nullable=False, default=0),
    Column("restarts", Integer, nullable=False, default=0),
    Column("exit_code", Integer),
    Column("log_tail", Text, nullable=False, default=""),
    moment("mismatch_since", nullable=True),
    moment("lingers_since", nullable=True),  # released here, but its machine reports it as running: to be stopped
    UniqueConstraint("org_id", "id"),
    ForeignKeyConstraint(["org_id", "machine_id"], ["machines.org_id", "machines.id"], name="fk_a_machine"),
    ForeignKeyConstraint(["org_id", "workload_id"], ["workloads.org_id", "workloads.id"], name="fk_a_workload"),
)
_LIVE = text("released_at IS NULL")
Index("ix_allocations_machine_live", allocations.c.machine_id, sqlite_where=_LIVE, postgresql_where=_LIVE)
Index("ix_allocations_workspace_live", allocations.c.workspace_id, sqlite_where=_LIVE, postgresql_where=_LIVE)
Index("ix_allocations_workload", allocations.c.workload_id)
Index("ix_allocations_usage", allocations.c.org_id, allocations.c.released_at)  # what lived at some time in a period
Index(
    "uq_allocations_workload_live", allocations.c.workload_id, unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE
)
# What the clock's pass looks for each second, by time; work that runs as asked and without limit is in none of them.
_LIMITED = text("released_at IS NULL AND stop_asked_at IS NULL AND must_end_by IS NOT NULL")
Index("ix_allocations_must_end", allocations.c.must_end_by, sqlite_where=_LIMITED, postgresql_where=_LIMITED)
_STOPPING = text("released_at IS NULL AND stop_asked_at IS NOT NULL")
Index("ix_allocations_stopping", allocations.c.stop_asked_at, sqlite_where=_STOPPING, postgresql_where=_STOPPING)
_DIFFERS = text("released_at IS NULL AND mismatch_since IS NOT NULL")
Index("ix_allocations_differ", allocations.c.mismatch_since, sqlite_where=_DIFFERS, postgresql_where=_DIFFERS)
_LINGERS = text("lingers_since IS NOT NULL")
Index("ix_allocations_lingers", allocations.c.machine_id, sqlite_where=_LINGERS, postgresql_where=_LINGERS)

gpu_holds = Table(
    "gpu_holds",
    metadata,
    refers("allocation_id", "allocations.id", primary_key=True),
    refers("gpu_id", "gpus.id", primary_key=True),
    Column("org_id", String(36), nullable=False),
    Column("machine_id", String(36), nullable=False),
    moment("released_at", nullable=True),
    ForeignKeyConstraint(
        ["org_id", "machine_id", "gpu_id"], ["gpus.org_id", "gpus.machine_id", "gpus.id"], name="fk_gh_gpu"
    ),
)
Index("uq_gpu_holds_live", gpu_holds.c.gpu_id, unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE)

workload_ssh_keys = Table(
    "workload_ssh_keys",
    metadata,
    Column("org_id", String(36), nullable=False),
    Column("workload_id", String(36), primary_key=True),
    refers("key_id", "ssh_keys.id", primary_key=True),
    ForeignKeyConstraint(["org_id", "workload_id"], ["workloads.org_id", "workloads.id"], name="fk_wk_workload"),
)

allocation_log = Table(
    "allocation_log",
    metadata,
    refers("allocation_id", "allocations.id", primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
    moment("at"),
)
