"""What a database says when it cannot: the names the rest of the house knows these errors by."""

from sqlalchemy.exc import DatabaseError, IntegrityError

__all__ = ["DatabaseError", "IntegrityError", "is_full"]

_DISK_FULL = "53100"
"""PostgreSQL's class for it."""


def is_full(error: BaseException) -> bool:
    """Return whether the database could not write because its disk is full."""
    if not isinstance(error, DatabaseError):
        return False
    return getattr(error.orig, "sqlstate", None) == _DISK_FULL or "database or disk is full" in str(error.orig)
