"""Organisations: their names, how long an invitation lives, and that the last owner stays (spec 05)."""

from __future__ import annotations

import unicodedata
from datetime import timedelta

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, display_name, shown, slug
from corral.domain.permissions import Role, may_set_role

CONTACT_MAX = 200
INVITATION_TTL = timedelta(days=7)
INVITATION_TTL_MIN, INVITATION_TTL_MAX = timedelta(minutes=1), timedelta(days=30)


def org_slug(text: str) -> str:
    """Return an organisation's short name. Errors: `INVALID_NAME`."""
    return slug(text, "short name of an organisation")


def org_name(text: str) -> str:
    """Return an organisation's shown name. Errors: `INVALID_NAME`."""
    return display_name(text, "name of an organisation")


def contact(text: str) -> str:
    """Return the line that tells people whom to ask for more: up to 200 printable characters, or none.

    Errors: `INVALID_REQUEST`.
    """
    line = text.strip()
    if len(line) > CONTACT_MAX or any(unicodedata.category(c) in HIDDEN for c in line):
        raise Refusal(
            "INVALID_REQUEST",
            f"contact: {shown(text)} is not one line of up to {CONTACT_MAX} printable characters. Correct it.",
            field="contact",
        )
    return line


def invitation_ttl(seconds: int | None) -> timedelta:
    """Return how long an invitation works (None: 7 days). Errors: `INVALID_REQUEST`."""
    if seconds is None:
        return INVITATION_TTL
    low, high = int(INVITATION_TTL_MIN.total_seconds()), int(INVITATION_TTL_MAX.total_seconds())
    if not low <= seconds <= high:
        raise Refusal("INVALID_REQUEST", f"ttl_seconds: use {low} to {high}.", field="ttl_seconds")
    return timedelta(seconds=seconds)


def check_role_change(actor: Role, present: Role, wanted: Role) -> None:
    """Refuse a role that the actor may not give or take. Errors: `FORBIDDEN`."""
    if not may_set_role(actor, present, wanted):
        raise Refusal(
            "FORBIDDEN", "Only an owner makes or unmakes owners, and members change no roles. Ask an owner to do it."
        )


def check_owner_stays(present: Role, wanted: Role | None, owners: int) -> None:
    """Refuse to take away the last of `owners` (`wanted` None: the member goes). Errors: `LAST_OWNER`."""
    if present is Role.OWNER and wanted is not Role.OWNER and owners <= 1:
        raise Refusal("LAST_OWNER", "This is the organisation's last owner. Make somebody else an owner first.")
