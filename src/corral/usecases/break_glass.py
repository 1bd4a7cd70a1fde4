"""Break-glass: begun and ended, each use in the tenant's audit (spec 05). What it opens: `identity.enter`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import break_glass as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.store import break_glass as rows
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


class Traces:
    """Which looks were written down lately, so that a page that asks again and again does not flood the audit.

    In memory: after a restart the next look is written down again.
    """

    def __init__(self) -> None:
        self._written: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        self.writing = threading.Lock()
        """Held from `due` to `written`: two requests at once leave one entry."""

    def due(self, look: str, route: str, now: datetime) -> bool:
        """Return whether a use of this route has to be written down."""
        at = self._written.get((look, route))
        return at is None or not now - rules.TRACE_EVERY < at <= now

    def written(self, look: str, route: str, now: datetime) -> None:
        """Note that it was, and is committed."""
        self._written[(look, route)] = now
        self._written.move_to_end((look, route))
        while len(self._written) > KEYS_MAX:
            self._written.popitem(last=False)


def record_use(ctx: Context, route: str) -> None:
    """Write into the tenant's audit that the operator looks at this route (method and template)."""
    subject = Subject(org=ctx.org.id, workspace=ctx.workspace_or_none.id if ctx.workspace_or_none else None)
    ctx.record("org.break_glass.used", subject, route=route, look=ctx.look)


def _record(ctx: Context, what: str, id: str, **data: str) -> None:
    ctx.record(f"org.break_glass.{what}", Subject(org=ctx.org.id), look=id, **data)
    ctx.record(f"org.break_glass.{what}", Subject(), org=ctx.org.slug, look=id, **data)


def _one(ctx: Context, id: str) -> Look:
    row = rows.get(ctx.tx, ctx.scope, id)
    assert row is not None, "looks are never deleted"
    return _look(ctx, row)


def _look(ctx: Context, row: Row) -> Look:
    told = (row["id"], row["login"], row["reason"], row["created_at"], row["expires_at"], row["ended_at"])
    return Look(*told, rules.lives(row["ended_at"], row["expires_at"], ctx.now))
