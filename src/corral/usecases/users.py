"""What people change about themselves (spec 05, `/me`)."""

from __future__ import annotations

from corral.domain import users as rules
from corral.domain.events import Subject
from corral.store import users as rows
from corral.usecases.context import Context


def rename(ctx: Context, name: str) -> str:
    """Change the caller's own name; return it. Errors: `INVALID_NAME`."""
    name = rules.person_name(name)
    if name != ctx.user.name:
        rows.change(ctx.tx, ctx.user.id, name=name)
        ctx.record("user.changed", Subject(), before=ctx.user.name, after=name)
    return name
