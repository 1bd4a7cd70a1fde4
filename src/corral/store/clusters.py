"""Rows of clusters and of each organisation's tenancy in them (its short name and shown name).

A tenancy that was left (`left_at`) keeps its row, its machines and its id; the organisation does not
see it any more. Nothing here finds one but what says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, and_, func, insert, or_, select, update

from corral.store.tables.access import access
from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.machines import gpus, machines
from corral.store.tables.orgs import orgs, workspaces
from corral.store.tables.site import sites
from corral.store.tables.workloads import allocations, workloads
from corral.store.transaction import Scope, Tx

_LIVE = tenancies.c.left_at.is_(None)


def tenancy_by_slug(tx: Tx, scope: Scope, slug: str) -> RowMapping | None:
    """Return a cluster as the organisation uses it: `cluster_id`, `slug`, `name`, `hosted`, `machine_limit` …"""
    return tx.one(_tenancies(scope).where(tenancies.c.slug == slug, _LIVE))


def called(tx: Tx, scope: Scope, name: str) -> list[str]:
    """Return the ids of the clusters that the organisation calls so, or called so when it left them; or of that id.

    The one it uses comes first: of what was, people ask by the name they knew.
    """
    t = tenancies.c
    named = select(t.cluster_id).where(t.org_id == scope.org, or_(t.slug == name, t.cluster_id == name))
    return [row["cluster_id"] for row in tx.all(named.order_by(t.left_at.is_(None).desc(), t.left_at.desc()))]


def listed(tx: Tx, scope: Scope, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the clusters the organisation uses, by short name, from after `after`."""
    query = _tenancies(scope).where(_LIVE).order_by(tenancies.c.slug).limit(limit)
    return tx.all(query if after is None else query.where(tenancies.c.slug > after))


def hosted_tenancy(tx: Tx, scope: Scope) -> RowMapping | None:
    """Return the organisation's tenancy of the hosted cluster, one that it left too (`left_at` is set then)."""
    return tx.one(_tenancies(scope).where(clusters.c.hosted))


def is_used(tx: Tx, scope: Scope, cluster_id: str) -> bool:
    """Return whether the organisation uses the cluster: it has not left it."""
    return tx.one(select(tenancies.c.slug).where(*_here(scope, cluster_id), _LIVE)) is not None


def left_dedicated(tx: Tx, scope: Scope, cluster_id: str) -> RowMapping | None:
    """Return a dedicated cluster that the organisation has left and the operator has not deleted."""
    here = (tenancies.c.cluster_id == cluster_id, tenancies.c.left_at.is_not(None))
    return tx.one(_tenancies(scope).where(*here, clusters.c.hosted.is_(False), clusters.c.removed_at.is_(None)))


def counts(tx: Tx, scope: Scope, cluster_id: str | None = None) -> Sequence[RowMapping]:
    """Return `cluster_id`, `machines`, `up`, `down`, `cordoned`, `gpus` of each cluster with machines, or of one."""
    here = [machines.c.org_id == scope.org, machines.c.removed_at.is_(None)]
    per_machine = select(gpus.c.machine_id, func.count().label("n")).where(
        gpus.c.org_id == scope.org, gpus.c.gone.is_(False)
    )
    if cluster_id is not None:
        here.append(machines.c.cluster_id == cluster_id)
    return _counted(tx, here, per_machine)


def _counted(tx: Tx, here: Sequence[ColumnElement[bool]], per_machine: Select[Any]) -> Sequence[RowMapping]:
    counted = per_machine.group_by(gpus.c.machine_id).subquery()
    return tx.all(
        select(
            machines.c.cluster_id,
            func.count().label("machines"),
            func.count().filter(machines.c.state == "up").label("up"),
            func.count().filter(machines.c.state == "down").label("down"),
            func.count().filter(machines.c.cordon_reason.is_not(None)).label("cordoned"),
            func.coalesce(func.sum(counted.c.n), 0).label("gpus"),
        )
        .outerjoin(counted, counted.c.machine_id == machines.c.id)
        .where(*here)
        .group_by(machines.c.cluster_id)
    )


def slugs(tx: Tx, scope: Scope) -> set[str]:
    """Return every short name that is taken: those of clusters that were left are free."""
    return {row["slug"] for row in tx.all(select(tenancies.c.slug).where(tenancies.c.org_id == scope.org, _LIVE))}


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


def leave(tx: Tx, scope: Scope, cluster_id: str) -> None:
    """Take the cluster out of the organisation. The caller has touched the fleet."""
    tx.run(_one(scope, cluster_id).where(_LIVE).values(left_at=tx.now))


def come_back(tx: Tx, scope: Scope, cluster_id: str, slug: str, name: str) -> None:
    """Give a cluster back that was left, with its machines. The caller has touched the fleet."""
    again = {"slug": slug, "name": name, "joined_at": tx.now, "left_at": None}
    tx.run(_one(scope, cluster_id).where(tenancies.c.left_at.is_not(None)).values(again))


def workspaces_with_access(tx: Tx, scope: Scope, cluster_id: str) -> Sequence[str]:
    """Return the short names of the workspaces that have access to the cluster."""
    rows = tx.all(
        select(workspaces.c.slug)
        .join(access, and_(access.c.workspace_id == workspaces.c.id, access.c.org_id == workspaces.c.org_id))
        .where(access.c.org_id == scope.org, access.c.cluster_id == cluster_id)
        .order_by(workspaces.c.slug)
    )
    return [row["slug"] for row in rows]


def machine_names(tx: Tx, scope: Scope, cluster_id: str, limit: int) -> Sequence[str]:
    """Return names of the machines that are enrolled, sorted."""
    here = (machines.c.org_id == scope.org, machines.c.cluster_id == cluster_id, machines.c.removed_at.is_(None))
    rows = tx.all(select(machines.c.name).where(*here).order_by(machines.c.name).limit(limit))
    return [row["name"] for row in rows]


def running(tx: Tx, scope: Scope, cluster_id: str, limit: int) -> Sequence[RowMapping]:
    """Return what lives or still runs in the cluster, what waits too: `workspace`, `name`, `kind`, `state`."""
    lingers = select(allocations.c.workload_id).where(
        allocations.c.org_id == scope.org,
        allocations.c.cluster_id == cluster_id,
        allocations.c.lingers_since.is_not(None),
    )
    return tx.all(
        select(workspaces.c.slug.label("workspace"), workloads.c.name, workloads.c.kind, workloads.c.state)
        .join(workspaces, workspaces.c.id == workloads.c.workspace_id)
        .where(
            workloads.c.org_id == scope.org,
            workloads.c.cluster_id == cluster_id,
            or_(workloads.c.ended_at.is_(None), workloads.c.id.in_(lingers)),
        )
        .order_by(workspaces.c.slug, workloads.c.name, workloads.c.id)
        .limit(limit)
    )


def lock_site(tx: Tx) -> None:
    """Lock the site's row: what the site has one of is made under it."""
    tx.one(select(sites.c.id).with_for_update(key_share=True))


def hosted_machine_limit(tx: Tx) -> int | None:
    """Return the site's machine limit per organisation on the hosted cluster (None: the site is not set up)."""
    limit = tx.scalar(select(sites.c.hosted_machine_limit))
    return None if limit is None else int(limit)


def site_contact(tx: Tx) -> str:
    """Return the operator's contact line ("" = none given)."""
    return str(tx.scalar(select(sites.c.contact)) or "")


def _tenancies(scope: Scope) -> Select[Any]:
    return (
        select(tenancies, clusters.c.hosted, orgs.c.machine_limit)
        .join(clusters, clusters.c.id == tenancies.c.cluster_id)
        .join(orgs, orgs.c.id == tenancies.c.org_id)
        .where(tenancies.c.org_id == scope.org)
    )


def _one(scope: Scope, cluster_id: str) -> Any:
    return update(tenancies).where(*_here(scope, cluster_id))


def _here(scope: Scope, cluster_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return tenancies.c.cluster_id == cluster_id, tenancies.c.org_id == scope.org


def names_of(tx: Tx, scope: Scope, cluster_id: str) -> RowMapping:
    """Return what a machine is told of where it joined: short names `org` and `cluster`, and the `incarnation`.

    Also of a cluster that was left: its machines stay enrolled.
    """
    row = tx.one(
        select(orgs.c.slug.label("org"), tenancies.c.slug.label("cluster"), sites.c.incarnation)
        .join(tenancies, tenancies.c.org_id == orgs.c.id)
        .join(sites, sites.c.id == 1)
        .where(orgs.c.id == scope.org, tenancies.c.cluster_id == cluster_id)
    )
    if row is None:
        raise LookupError(f"no tenancy of {scope.org} in {cluster_id}, or the site is not set up")
    return row


# --- the operator's: dedicated clusters, whosesoever they are


def dedicated(tx: Tx, after: str | None, limit: int) -> Sequence[RowMapping]:
    """Return the site's dedicated clusters that were not deleted, by id: `id`, `org_id`, `org`, `slug`, `left_at` …"""
    query = _dedicated().order_by(clusters.c.id).limit(limit)
    return tx.all(query if after is None else query.where(clusters.c.id > after))


def one_dedicated(tx: Tx, id: str) -> RowMapping | None:
    """Return one of them."""
    return tx.one(_dedicated().where(clusters.c.id == id))


def counts_of(tx: Tx, cluster_ids: Sequence[str]) -> dict[str, RowMapping]:
    """Return the numbers of dedicated clusters with machines, by cluster id, as `counts` has them."""
    here = [machines.c.cluster_id.in_(list(cluster_ids)), machines.c.removed_at.is_(None)]
    theirs = select(tenancies.c.org_id).where(tenancies.c.cluster_id.in_(list(cluster_ids)))
    per_machine = select(gpus.c.machine_id, func.count().label("n")).where(
        gpus.c.org_id.in_(theirs), gpus.c.gone.is_(False)
    )
    return {row["cluster_id"]: row for row in _counted(tx, here, per_machine)}


def remove(tx: Tx, id: str) -> None:
    """Mark a dedicated cluster deleted; its row stays, for the audit and for what was used there."""
    tx.run(update(clusters).where(clusters.c.id == id, clusters.c.hosted.is_(False)).values(removed_at=tx.now))


def remove_of_org(tx: Tx, scope: Scope) -> None:
    """Leave every cluster of an organisation that goes, and delete its dedicated ones."""
    mine = tenancies.c.org_id == scope.org
    own: ColumnElement[bool] = clusters.c.id.in_(select(tenancies.c.cluster_id).where(mine))
    tx.run(update(tenancies).where(mine, _LIVE).values(left_at=tx.now))
    gone = (own, clusters.c.hosted.is_(False), clusters.c.removed_at.is_(None))
    tx.run(update(clusters).where(*gone).values(removed_at=tx.now))


def _dedicated() -> Select[Any]:
    return (
        select(clusters.c.id, clusters.c.created_at, tenancies.c.org_id, tenancies.c.slug, tenancies.c.name)
        .add_columns(tenancies.c.left_at, orgs.c.slug.label("org"))
        .join(tenancies, tenancies.c.cluster_id == clusters.c.id)
        .join(orgs, orgs.c.id == tenancies.c.org_id)
        .where(clusters.c.hosted.is_(False), clusters.c.removed_at.is_(None))
    )
