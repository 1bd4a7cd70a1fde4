"""Break-glass: begun and ended, each use in the tenant's audit (spec 05). What it opens: `identity.enter`."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import break_glass as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.ids import shown
from corral.store import break_glass as rows
from corral.store import clusters as cluster_rows
from corral.store import connections
from corral.store import machines as machine_rows
from corral.store import orgs as org_rows
from corral.store.transaction import Row, Wake
from corral.usecases import orgs
from corral.usecases.context import Context

KEYS_MAX = 10_000


@dataclass(frozen=True)
class Look:
    """One time that the operator may, or might, look into the organisation."""

    id: str
    operator: str
    reason: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    live: bool


def begin(ctx: Context, reason: str, ttl_seconds: int) -> Look:
    """Open the organisation's data to this operator for reading.

    Errors: `INVALID_REQUEST`; `CONFLICT` where they have a look that lives.
    """
    reason, ttl = rules.reason(reason), rules.ttl(ttl_seconds)
    orgs.locked(ctx)
    present = rows.live(ctx.tx, ctx.scope, ctx.user.id)
    if present is not None:
        raise Refusal(
            "CONFLICT",
            f"You may look into '{ctx.org.slug}' already, until {present['expires_at']:%Y-%m-%d %H:%M:%S} UTC. "
            "Use that, or end it first.",
            id=present["id"],
        )
    id, expires_at = ctx.new_id(), ctx.now + ttl
    rows.add(ctx.tx, ctx.scope, id, ctx.user.id, reason, expires_at)
    _record(ctx, "began", id, reason=reason, until=expires_at.isoformat())
    return _one(ctx, id)


def listed(ctx: Context, before: str | None, limit: int) -> Sequence[Look]:
    """Return every look there was, newest first."""
    return [_look(ctx, row) for row in rows.listed(ctx.tx, ctx.scope, before, limit)]


def end(ctx: Context, id: str) -> None:
    """End a look at once, open event streams included; one that is over stays so. Errors: `NOT_FOUND`."""
    orgs.locked(ctx)
    row = rows.get(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    if rows.end(ctx.tx, ctx.scope, id):
        _record(ctx, "ended", id, operator=row["login"])
        ctx.wake(Wake.STREAMS, row["user_id"])


@dataclass(frozen=True)
class Looked:
    """What an operator looks at: the route (method and template), and what its path and its filters name."""

    route: str
    path: str
    workspace: str | None = None
    cluster: str | None = None
    machine: str | None = None
    workload: str | None = None


class Traces:
    """Which looks were written down lately, so that a page that asks again and again does not flood the audit.

    In memory: after a restart the next look is written down again. So is one that had to be forgotten because
    `keys_max` others came after it within the minute: nothing goes untraced for want of room.
    """

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._written: OrderedDict[tuple[str, bytes], datetime] = OrderedDict()
        self.writing = threading.Lock()
        """Held from `due` to `written`: two requests at once leave one entry."""

    def due(self, look: str, path: str, now: datetime) -> bool:
        """Return whether a use of this path has to be written down."""
        at = self._written.get(_key(look, path))
        return at is None or not now - rules.TRACE_EVERY < at <= now

    def written(self, look: str, path: str, now: datetime) -> None:
        """Note that it was, and is committed."""
        key = _key(look, path)
        self._written[key] = now
        self._written.move_to_end(key)
        while len(self._written) > self._keys_max:
            self._written.popitem(last=False)


def _key(look: str, path: str) -> tuple[str, bytes]:
    """A path may be as long as a request line: what is kept of it is not."""
    return look, hashlib.sha256(path.encode("utf-8", "surrogatepass")).digest()


def record_use(ctx: Context, looked: Looked) -> None:
    """Write into the tenant's audit what the operator looks at; the subject is what of it is there."""
    path = shown(looked.path, rules.PATH_MAX)[1:-1]
    ctx.record("org.break_glass.used", _subject(ctx, looked), route=looked.route, path=path, look=ctx.look)


def _subject(ctx: Context, looked: Looked) -> Subject:
    tx, scope = ctx.tx, ctx.scope
    workspace = org_rows.workspace_with_part(tx, scope, looked.workspace, ctx.user.id) if looked.workspace else None
    cluster = next(iter(cluster_rows.called(tx, scope, looked.cluster)), None) if looked.cluster else None
    machine = machine_rows.by_name(tx, scope, cluster, looked.machine) if cluster and looked.machine else None
    workload = connections.find(tx, scope, workspace["id"], looked.workload) if workspace and looked.workload else None
    ids = [row["id"] if row else None for row in (workspace, machine, workload)]
    return Subject(ctx.org.id, cluster, *ids)


def _record(ctx: Context, what: str, id: str, **data: str) -> None:
    ctx.record_for_both(f"org.break_glass.{what}", Subject(org=ctx.org.id), look=id, **data)


def _one(ctx: Context, id: str) -> Look:
    row = rows.get(ctx.tx, ctx.scope, id)
    assert row is not None, "looks are never deleted"
    return _look(ctx, row)


def _look(ctx: Context, row: Row) -> Look:
    told = (row["id"], row["login"], row["reason"], row["created_at"], row["expires_at"], row["ended_at"])
    return Look(*told, rules.lives(row["ended_at"], row["expires_at"], ctx.now))
