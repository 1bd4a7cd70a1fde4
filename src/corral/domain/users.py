"""People: logins, passwords, how many tries a login has, and what their API tokens may be (spec 05, spec 50)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from corral.domain.errors import Refusal
from corral.domain.ids import display_name, is_uuid, shown
from corral.domain.permissions import SCOPES

PASSWORD_MIN, PASSWORD_MAX = 10, 1024
LOGIN_TOKEN_TTL = timedelta(days=30)
LOGIN_TOKENS_MAX = 20
"""Logging in once more revokes the oldest."""
TOKENS_MAX = 100
TOKEN_TTL = timedelta(days=90)
TOKEN_TTL_MIN, TOKEN_TTL_MAX = timedelta(minutes=1), timedelta(days=5 * 365)
OPERATOR_LINK_TTL = timedelta(hours=24)
LOGIN_LINK_TTL = timedelta(hours=24)
_LOGIN = re.compile(r"[a-z0-9](?:[a-z0-9._@+-]{0,98}[a-z0-9])?")


@dataclass(frozen=True)
class Limit:
    """At most `tries` failures within `seconds`."""

    tries: int
    seconds: float


TRIES_HERE = Limit(5, 60)
"""One login from one address."""
TRIES_ADDRESS = Limit(60, 60)
"""Any login from one address."""
TRIES_LOGIN = Limit(100, 3600)
"""One login from everywhere. Beyond it nobody is locked out, or guessing at a login would lock its owner out: addresses
that it was never logged in from only try more slowly."""
TRIES_SLOWED = Limit(1, 300)
"""One login from one such address meanwhile."""


def login(text: str) -> str:
    """Return a login, in lower case: 1 to 100 letters, digits and `._@+-`. Errors: `INVALID_NAME`."""
    lowered = text.lower() if text.isascii() else text
    if _LOGIN.fullmatch(lowered) is None or is_uuid(lowered):
        raise Refusal(
            "INVALID_NAME",
            f"{shown(text)} cannot be a login: use 1 to 100 letters, digits and '._@+-', "
            "beginning and ending with a letter or digit.",
            field="login",
        )
    return lowered


def login_or_none(text: str) -> str | None:
    """Return what `login` does, or None where it refuses."""
    try:
        return login(text)
    except Refusal:
        return None


def person_name(text: str) -> str:
    """Return a person's name. Errors: `INVALID_NAME`."""
    return display_name(text, "name of a person")


def new_password(text: str) -> str:
    """Return a password that may be set, in the form that is hashed. Errors: `INVALID_REQUEST`."""
    if not PASSWORD_MIN <= len(text) <= PASSWORD_MAX:
        raise Refusal(
            "INVALID_REQUEST", f"password: use {PASSWORD_MIN} to {PASSWORD_MAX} characters.", field="password"
        )
    return typed_password(text)


def typed_password(text: str) -> str:
    """Return a typed password in the form that is hashed: keyboards write one accent in two ways.

    Half a surrogate pair, which no keyboard writes and no hash takes, becomes a question mark.
    """
    return unicodedata.normalize("NFC", text[:PASSWORD_MAX]).encode(errors="replace").decode()


def token_scopes(asked: Sequence[str], held: Collection[str]) -> tuple[str, ...]:
    """Return a new token's scopes: known ones, and none that the token in hand (`held`) lacks.

    Errors: `INVALID_REQUEST`, `FORBIDDEN`.
    """
    unknown = [scope for scope in asked if scope not in SCOPES]
    if unknown or not asked:
        what = f"{shown(unknown[0])} is no scope" if unknown else "name at least one"
        raise Refusal("INVALID_REQUEST", f"scopes: {what}. There are: {', '.join(SCOPES)}.", field="scopes")
    if "all" not in held and not set(asked) <= set(held):
        raise Refusal(
            "FORBIDDEN",
            "A token makes no token that may do more than itself. Log in and make it then.",
            scope=sorted(set(asked) - set(held))[0],
        )
    return tuple(sorted(set(asked)))


def token_ttl(seconds: int | None) -> timedelta:
    """Return how long a new API token works (None: 90 days). Errors: `INVALID_REQUEST`."""
    if seconds is None:
        return TOKEN_TTL
    low, high = int(TOKEN_TTL_MIN.total_seconds()), int(TOKEN_TTL_MAX.total_seconds())
    if not low <= seconds <= high:
        raise Refusal("INVALID_REQUEST", f"expires_in_seconds: use {low} to {high}.", field="expires_in_seconds")
    return timedelta(seconds=seconds)
