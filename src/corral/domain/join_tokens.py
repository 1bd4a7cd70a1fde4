"""Join tokens: how long one lives, and what a join with it comes to (spec 10 "Join tokens", spec 40 "Joining")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.domain import labels as label_rules
from corral.domain.errors import Refusal

DEFAULT_TTL_S, MIN_TTL_S, MAX_TTL_S = 3600, 60, 604800

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Asked:
    """A join token as it was asked for, checked."""

    labels: Mapping[str, str]
    ttl: timedelta


def asked(labels: Mapping[str, object], ttl_seconds: object) -> Asked:
    """Return what to make. Errors: `INVALID_LABEL`, `RESERVED_LABEL`, `INVALID_TTL`."""
    return Asked(label_rules.checked(labels), timedelta(seconds=_ttl(ttl_seconds)))


def _ttl(seconds: object) -> int:
    # A bool is an int to Python, not to people.
    if isinstance(seconds, int) and not isinstance(seconds, bool) and MIN_TTL_S <= seconds <= MAX_TTL_S:
        return seconds
    raise Refusal(
        "INVALID_TTL",
        f"ttl_seconds must be a whole number from {MIN_TTL_S} (a minute) to {MAX_TTL_S} (a week).",
        field="ttl_seconds",
    )


def machine_key(text: str) -> str:
    """Return the agent's own key if it is one: 256 bits in hex. Errors: `INVALID_REQUEST`."""
    if _KEY.fullmatch(text) is None:
        raise Refusal("INVALID_REQUEST", "key: send 256 random bits as 64 lower case hex digits.", field="key")
    return text


def unknown() -> Refusal:
    return Refusal(
        "TOKEN_UNKNOWN",
        "This join token is unknown: mistyped, cut short, or revoked. Get a new install command and run it.",
    )


def removed() -> Refusal:
    return Refusal(
        "MACHINE_REMOVED",
        "This machine was removed and cannot come back by itself. A new install command makes it a new machine.",
    )


@dataclass(frozen=True)
class Found:
    """A genuine token's row, as far as a join is judged by it."""

    revoked: bool
    used: bool
    expires_at: datetime


def why_not(token: Found, now: datetime) -> Refusal | None:
    """Return why a machine with a new key may not join with this token (None: it may)."""
    if token.revoked:
        return unknown()
    if token.used:
        return Refusal(
            "TOKEN_USED",
            "Another machine joined with this token, and one token is for one machine. "
            "Get a new install command for this machine.",
        )
    if token.expires_at <= now:
        return Refusal("TOKEN_EXPIRED", "This join token's time is over. Get a new install command and run it.")
    return None
