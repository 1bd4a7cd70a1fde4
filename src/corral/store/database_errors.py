"""What a database says when it cannot: the names the rest of the house knows these errors by."""

from sqlalchemy.exc import DatabaseError, IntegrityError

__all__ = ["DatabaseError", "IntegrityError"]
