"""What every table shares: the MetaData with its naming rule, and short ways to write common columns."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, ForeignKey, MetaData, String

from corral.store.types import UtcTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def id_column(name: str = "id") -> Column[str]:
    return Column(name, String(36), primary_key=True)


def refers(name: str, to: str, *, nullable: bool = False, **kwargs: Any) -> Column[str]:
    return Column(name, String(36), ForeignKey(to), nullable=nullable, **kwargs)


def moment(name: str, *, nullable: bool = False) -> Column[datetime]:
    return Column(name, UtcTime, nullable=nullable)
