"""Refused acts worth knowing are audited (spec 10): who they were, and in whose audit it stands."""

from __future__ import annotations

from dataclasses import dataclass

from corral.domain.errors import Refusal
from corral.store import orgs as org_rows
from corral.store.transaction import Tx
from corral.usecases.context import User
from corral.usecases.identity import Caller, Place, identify


@dataclass(frozen=True)
class Denied:
    user: User
    org_id: str | None
    """None: the site's own audit."""


def worth_recording(tx: Tx, caller: Caller, place: Place) -> Denied | None:
    """Return who was denied; None when the credential has meanwhile died."""
    try:
        user = identify(tx, caller).user
    except Refusal:
        return None
    row = org_rows.with_role(tx, place.org, user.id) if place.org else None
    return Denied(user, row["id"] if row is not None else None)
