"""The schema: one file a noun, one MetaData. Importing this package loads all of it."""

from corral.store.tables import (
    access,
    alerts,
    break_glass,
    clusters,
    faults,
    journal,
    machines,
    orgs,
    prices,
    reservations,
    site,
    updates,
    users,
    workloads,
)
from corral.store.tables.base import metadata

__all__ = [
    "access",
    "alerts",
    "break_glass",
    "clusters",
    "faults",
    "journal",
    "machines",
    "metadata",
    "orgs",
    "prices",
    "reservations",
    "site",
    "updates",
    "users",
    "workloads",
]
