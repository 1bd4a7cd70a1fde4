"""What a database says when it cannot: the names the rest of the house knows these errors by."""

from sqlalchemy.exc import DatabaseError, IntegrityError, InterfaceError, InternalError, OperationalError, TimeoutError

__all__ = ["DatabaseError", "IntegrityError", "is_full", "is_unable"]

_DISK_FULL = "53100"
"""PostgreSQL's class for it."""


def is_full(error: BaseException) -> bool:
    """Return whether the database could not write because its disk is full."""
    if not isinstance(error, DatabaseError):
        return False
    return getattr(error.orig, "sqlstate", None) == _DISK_FULL or "database or disk is full" in str(error.orig)


def is_unable(error: BaseException) -> bool:
    """Return whether the database would do it for nobody now: it is away, full, read-only or busy.

    What one caller's values may bring about (a constraint, a number out of range) is not that.
    """
    return isinstance(error, (OperationalError, InternalError, InterfaceError, TimeoutError))
