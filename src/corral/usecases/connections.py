"""Streams into compute clusters: who may open one, and whether it may stay open (spec 20, "Connect").

The control plane is trusted for pins and keys, not with the bytes: ssh is end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.workloads import ENDED, State
from corral.store import connections as rows
from corral.store.transaction import Row
from corral.usecases.context import Context

SSH, PORT, LOGS = "ssh", "port", "logs"


@dataclass(frozen=True)
class Target:
    """Where an open stream leads, and whose it is."""

    workload_id: str
    allocation_id: str
    generation: int
    machine_id: str
    host_key: str
    user_id: str
    token_id: str
    kind: str
    keys: frozenset[str] = frozenset()
    """Ids of the person's keys that were attached when an ssh stream was opened; any of them may have been used."""


@dataclass(frozen=True)
class Connection:
    """What a person needs to connect, and why they cannot."""

    name: str
    workload_id: str
    machine: str | None
    machine_id: str | None
    ssh: str
    """ready | no key | not active (whether the machine is reachable, the server adds)."""
    why: str
    host_key: str
    fingerprints: Sequence[str]
    """Of the caller's attached keys."""


def open_stream(ctx: Context, name: str, kind: str, port: int) -> Target:
    """Return where the stream leads. Errors: `NOT_FOUND`, `NOT_ACTIVE`, `NO_SSH_KEY`."""
    row = _find(ctx, name)
    _check(ctx, row, kind)
    ctx.record(
        "workload.stream",
        Subject(org=ctx.org.id, workspace=ctx.workspace.id, machine=row["machine_id"], workload=row["id"]),
        kind=kind,
        **({"port": port} if kind == PORT else {}),
    )
    return Target(
        row["id"],
        row["allocation_id"],
        row["generation"],
        row["machine_id"],
        row["host_key"],
        ctx.user.id,
        ctx.token_id,
        kind,
        frozenset(key["id"] for key in _mine(ctx, row["id"])) if kind == SSH else frozenset(),
    )


def still_allowed(ctx: Context, target: Target) -> None:
    """Refuse when the stream could not be opened now, or its workload has moved on."""
    row = _find(ctx, target.workload_id)
    _check(ctx, row, target.kind)
    if row["allocation_id"] != target.allocation_id:
        raise Refusal("NOT_ACTIVE", f"{row['name']} was placed again. Connect again.")
    if not target.keys <= {key["id"] for key in _mine(ctx, row["id"])}:
        # Which key let a session in only the two ends know, so each detached one ends all of its owner's.
        raise Refusal("NO_SSH_KEY", f"An SSH key of yours was detached from {row['name']}. Connect again with another.")


def show(ctx: Context, name: str) -> Connection:
    """Return what the caller needs to connect by ssh."""
    row = _find(ctx, name)
    mine = [key["fingerprint"] for key in _mine(ctx, row["id"])]
    ssh, why = "ready", ""
    try:
        _check(ctx, row, SSH)
    except Refusal as refusal:
        ssh = {"NO_SSH_KEY": "no key"}.get(refusal.code, "not active")
        why = refusal.message
    return Connection(
        row["name"], row["id"], row["machine_name"], row["machine_id"], ssh, why, row["host_key"] or "", mine
    )


def _find(ctx: Context, name: str) -> Row:
    row = rows.find(ctx.tx, ctx.scope, ctx.workspace.id, name)
    if row is None:
        raise not_found()
    return row


def _mine(ctx: Context, workload_id: str) -> list[Row]:
    return [key for key in rows.attached_keys(ctx.tx, ctx.scope, workload_id) if key["user_id"] == ctx.user.id]


def _check(ctx: Context, row: Row, kind: str) -> None:
    """Refuse what cannot work now. Logs can be read as long as there is a container to ask."""
    name, state = row["name"], State(row["state"])
    if row["allocation_id"] is None or state in ENDED:
        raise Refusal("NOT_ACTIVE", f"{name} is {state.value}: there is nothing to connect to.", state=state.value)
    if row["stop_asked_at"] is not None:
        raise Refusal("NOT_ACTIVE", f"{name} is being terminated.", state=state.value)
    if kind == LOGS:
        return
    if state is State.PROVISIONING:
        raise Refusal(
            "NOT_ACTIVE",
            f"{name} is still being provisioned ({row['step']}). Wait until it is active.",
            state=state.value,
        )
    if kind == SSH and not _mine(ctx, row["id"]):
        raise Refusal(
            "NO_SSH_KEY",
            f"No SSH key of yours is attached to {name}. Add one with `corral ssh-key add`, "
            f"then attach it with `corral compute keys attach {name}`.",
        )
