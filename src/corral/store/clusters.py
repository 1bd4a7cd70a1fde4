"""Rows of clusters and of each organisation's tenancy in them (its short name and shown name)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import RowMapping, Select, and_, func, insert, select, update

from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.orgs import orgs
from corral.store.tables.site import sites
from corral.store.transaction import Scope, Tx


def tenancy_by_slug(tx: Tx, scope: Scope, slug: str) -> RowMapping | None:
    """Return a cluster as the organisation uses it: `cluster_id`, `slug`, `name`, `hosted` …"""
    return tx.one(_tenancies(scope).where(tenancies.c.slug == slug))


def tenancy(tx: Tx, scope: Scope, cluster_id: str) -> RowMapping | None:
    """Return one tenancy by its cluster's id."""
    return tx.one(_tenancies(scope).where(tenancies.c.cluster_id == cluster_id))


def listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the clusters the organisation uses, by short name, from after `after`."""
    query = _tenancies(scope).order_by(tenancies.c.slug).limit(limit)
    return tx.all(query if after is None else query.where(tenancies.c.slug > after))


def hosted_tenancy(tx: Tx, scope: Scope) -> RowMapping | None:
    """Return the organisation's tenancy of the hosted cluster."""
    return tx.one(_tenancies(scope).where(clusters.c.hosted))


def counts(tx: Tx, scope: Scope, cluster_id: str | None = None) -> Sequence[RowMapping]:
    """Return for each cluster with machines, or for one, `cluster_id`, `machines`, `up`, `gpus`: one query."""
    here = [machines.c.org_id == scope.org, machines.c.removed_at.is_(None)]
    if cluster_id is not None:
        here.append(machines.c.cluster_id == cluster_id)
    per_machine = (
        select(gpus.c.machine_id, func.count().label("n"))
        .where(gpus.c.org_id == scope.org, gpus.c.gone.is_(False))
        .group_by(gpus.c.machine_id)
    )
    if cluster_id is not None:
        per_machine = per_machine.join(machines, machines.c.id == gpus.c.machine_id).where(*here)
    counted = per_machine.subquery()
    return tx.all(
        select(
            machines.c.cluster_id,
            func.count().label("machines"),
            func.count().filter(machines.c.state == "up").label("up"),
            func.coalesce(func.sum(counted.c.n), 0).label("gpus"),
        )
        .outerjoin(counted, counted.c.machine_id == machines.c.id)
        .where(*here)
        .group_by(machines.c.cluster_id)
    )


def slugs(tx: Tx, scope: Scope) -> set[str]:
    """Return every short name that is taken."""
    return {row["slug"] for row in tx.all(select(tenancies.c.slug).where(tenancies.c.org_id == scope.org))}


def hosted_cluster(tx: Tx) -> RowMapping | None:
    """Return the site's one hosted cluster."""
    return tx.one(select(clusters).where(clusters.c.hosted))


def add_cluster(tx: Tx, id: str, *, hosted: bool) -> None:
    tx.run(insert(clusters).values(id=id, hosted=hosted, created_at=tx.now))


def add_tenancy(tx: Tx, scope: Scope, cluster_id: str, slug: str, name: str) -> None:
    tx.run(
        insert(tenancies).values(
            cluster_id=cluster_id, org_id=scope.org, slug=slug, name=name, version=0, joined_at=tx.now
        )
    )


def rename(tx: Tx, scope: Scope, cluster_id: str, name: str) -> None:
    tx.run(_one(scope, cluster_id).values(name=name))


def lock_site(tx: Tx) -> None:
    """Lock the site's row: what the site has one of is made under it."""
    tx.one(select(sites.c.id).with_for_update())


def hosted_machine_limit(tx: Tx) -> int | None:
    """Return the site's machine limit per organisation on the hosted cluster (None: the site is not set up)."""
    limit = tx.scalar(select(sites.c.hosted_machine_limit))
    return None if limit is None else int(limit)


def site_contact(tx: Tx) -> str:
    """Return the operator's contact line ("" = none given)."""
    return str(tx.scalar(select(sites.c.contact)) or "")


def _tenancies(scope: Scope) -> Select[Any]:
    return (
        select(tenancies, clusters.c.hosted)
        .join(clusters, clusters.c.id == tenancies.c.cluster_id)
        .where(tenancies.c.org_id == scope.org)
    )


def _one(scope: Scope, cluster_id: str) -> Any:
    return update(tenancies).where(and_(tenancies.c.cluster_id == cluster_id, tenancies.c.org_id == scope.org))


def names_of(tx: Tx, scope: Scope, cluster_id: str) -> RowMapping:
    """Return what a machine is told of where it joined: short names `org` and `cluster`, and the `incarnation`."""
    row = tx.one(
        select(orgs.c.slug.label("org"), tenancies.c.slug.label("cluster"), sites.c.incarnation)
        .join(tenancies, tenancies.c.org_id == orgs.c.id)
        .join(sites, sites.c.id == 1)
        .where(orgs.c.id == scope.org, tenancies.c.cluster_id == cluster_id)
    )
    if row is None:
        raise LookupError(f"no tenancy of {scope.org} in {cluster_id}, or the site is not set up")
    return row
