"""Hashing passwords (argon2, spec 05): slow on purpose, so never inside a transaction, and only two at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from corral.domain import users as rules
from corral.domain.errors import Refusal

AT_ONCE, WAIT_S = 2, 10.0
"""Each takes 64 MiB and a core for some 50 ms."""

_hasher = PasswordHasher()
_busy = threading.BoundedSemaphore(AT_ONCE)


def hashed(password: str) -> str:
    """Return the hash of a new password. Errors: `INVALID_REQUEST` (its length), `UNAVAILABLE`."""
    clean = rules.new_password(password)
    with _turn():
        return _hasher.hash(clean)


def matches(hash: str | None, password: str) -> bool:
    """Return whether the password is the hashed one; takes as long when there is no hash. Errors: `UNAVAILABLE`."""
    with _turn():
        stand_in = _nobody()
        try:
            return _hasher.verify(hash or stand_in, rules.typed_password(password)) and hash is not None
        except (VerificationError, InvalidHashError):
            return False


@cache
def _nobody() -> str:
    """A hash for those who have none: its password is never accepted."""
    return _hasher.hash("nobody's password")


@contextmanager
def _turn() -> Iterator[None]:
    if not _busy.acquire(timeout=WAIT_S):
        raise Refusal("UNAVAILABLE", "Too many people log in just now. Try again in a few seconds.", retry_after_s=5)
    try:
        yield
    finally:
        _busy.release()
