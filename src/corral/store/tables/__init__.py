"""The schema: one file a noun, one MetaData. Importing this package loads all of it."""

from corral.store.tables import (
    access,
    clusters,
    journal,
    machines,
    orgs,
    site,
    users,
    workloads,
)
from corral.store.tables.base import metadata

__all__ = ["access", "clusters", "journal", "machines", "metadata", "orgs", "site", "users", "workloads"]
