"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, TypeDecorator

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite increments only a column that is declared INTEGER."""


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, kept as whole microseconds: exact, sortable, and the same on both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return None if value is None else EPOCH + timedelta(microseconds=int(value))
