"""Break-glass: the operator looks into a tenant for a while, with a reason that the tenant sees (spec 05).

It opens reading alone, as an admin reads. Which routes that is stands in `domain/permissions.py`.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime, timedelta

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown

DEFAULT_TTL_S, MIN_TTL_S, MAX_TTL_S = 3600, 60, 8 * 3600
REASON_MAX = 500
TRACE_EVERY = timedelta(minutes=1)
"""The same page, looked at again within this time, is one entry of the tenant's audit."""
PATH_MAX = 300
"""Characters that an entry keeps of the path that was looked at."""


def reason(text: str) -> str:
    """Return why the operator looks: 1 to 500 printable characters. Errors: `INVALID_REQUEST`."""
    why = text.strip()
    if not 1 <= len(why) <= REASON_MAX or any(unicodedata.category(c) in HIDDEN for c in why):
        raise Refusal(
            "INVALID_REQUEST",
            f"reason: {shown(text)} is not one line of 1 to {REASON_MAX} printable characters. "
            "Say why you look: the organisation's owners read it.",
            field="reason",
        )
    return why


def ttl(seconds: int) -> timedelta:
    """Return for how long: a minute to eight hours. Errors: `INVALID_REQUEST`."""
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise Refusal("INVALID_REQUEST", f"ttl_seconds: use {MIN_TTL_S} to {MAX_TTL_S}.", field="ttl_seconds")
    return timedelta(seconds=seconds)


def lives(ended_at: datetime | None, expires_at: datetime, now: datetime) -> bool:
    """Return whether it still opens anything."""
    return ended_at is None and now < expires_at
