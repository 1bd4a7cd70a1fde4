"""What `corral site doctor` asks the database about the site as a whole: counts only, nobody's names."""

from __future__ import annotations

from sqlalchemy import func, select

from corral.store.tables.machines import machines
from corral.store.transaction import Tx


def releases(tx: Tx) -> dict[str, int]:
    """Return how many machines of the site have each agent release ("" = not reported yet)."""
    rows = tx.all(
        select(machines.c.release, func.count().label("count"))
        .where(machines.c.removed_at.is_(None))
        .group_by(machines.c.release)
    )
    return {row["release"]: row["count"] for row in rows}
