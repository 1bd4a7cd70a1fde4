"""The site's lease: the row that lets one control plane process serve (design decision 15)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import or_, select, update

from corral.store.tables.site import sites
from corral.store.transaction import Row, Tx


def held(tx: Tx) -> Row | None:
    """Return `lease_holder` and `lease_until` of the site."""
    return tx.one(select(sites.c.lease_holder, sites.c.lease_until))


def take(tx: Tx, holder: str, until: datetime, dead: str | None) -> bool:
    """Take or renew the lease; return whether `holder` has it now.

    Free is a lease that nobody holds, that is over, or whose holder is known to be `dead`.
    """
    free = or_(
        sites.c.lease_holder.is_(None),
        sites.c.lease_until <= tx.now,
        sites.c.lease_holder.in_([holder, dead] if dead else [holder]),
    )
    return tx.run(update(sites).where(free).values(lease_holder=holder, lease_until=until)) == 1


def give_back(tx: Tx, holder: str) -> None:
    tx.run(update(sites).where(sites.c.lease_holder == holder).values(lease_holder=None, lease_until=None))
