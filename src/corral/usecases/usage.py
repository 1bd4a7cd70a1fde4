"""What was used and what it costs, derived from allocations each time it is asked (spec 10, "Prices, usage, budgets").

Nothing is metered as it goes: what the database knows of allocations is all there is to lose. Admins see the
organisation's usage; members that of workloads they made, in the workspaces they belong to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from corral.domain import usage as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.ids import EPOCH
from corral.domain.prices import Tariff
from corral.domain.usage import Bill, By, Period
from corral.store import clusters as cluster_rows
from corral.store import orgs as org_rows
from corral.store import usage as rows
from corral.store.transaction import Scope, Tx
from corral.store.usage import Key, Want, key_names
from corral.usecases import prices
from corral.usecases.context import Context

__all__ = ["Group", "Key", "Query", "Report", "bills", "key_names", "report"]


@dataclass(frozen=True)
class Query:
    """What a person asks for: names as they write them."""

    by: Sequence[By] = (By.WORKSPACE,)
    start: datetime | None = None
    end: datetime | None = None
    workspace: str | None = None
    user: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Group:
    """`key`: what `key_names` names, in that order."""

    key: Key
    bill: Bill


@dataclass(frozen=True)
class Report:
    """Usage in a period. It reads from the transaction it was asked in, as long as that is open."""

    period: Period
    by: Sequence[By]
    _tx: Tx
    _scope: Scope
    _tariffs: Mapping[str, Tariff]
    _want: Want

    @property
    def currencies(self) -> list[str]:
        """Every currency in which something of this period may cost."""
        return sorted({table.currency for tariff in self._tariffs.values() for table in tariff.tables})

    def groups(self, after: Key | None = None) -> Iterator[Group]:
        """Yield the groups in the order of their keys, those after `after`."""
        want = Want(**{**vars(self._want), "by": self.by, "after": after})
        return _groups(self._tx, self._scope, want, self._tariffs)

    def total(self) -> Bill:
        """Return all of it in one."""
        want = Want(**{**vars(self._want), "pieces": _pieces(self.period, self._tariffs)})
        return next((group.bill for group in _groups(self._tx, self._scope, want, self._tariffs)), Bill())


def report(ctx: Context, query: Query) -> Report:
    """Return the usage that the caller may see. Errors: `INVALID_REQUEST`, `NOT_FOUND`, `FORBIDDEN`."""
    by = tuple(dict.fromkeys(query.by)) or (By.WORKSPACE,)
    period = rules.period(query.start, query.end, ctx.now, by)
    tariffs = _tariffs(ctx.tx, ctx.scope, period)
    want = Want(
        pieces=_pieces(period, tariffs, by),
        workspaces=_workspaces(ctx, query.workspace),
        maker=_maker(ctx, query.user),
        clusters=_clusters(ctx, query.cluster),
    )
    return Report(period, by, ctx.tx, ctx.scope, tariffs, want)


def bills(tx: Tx, scope: Scope, period: Period, workspaces: Collection[str]) -> dict[str, Bill]:
    """Return what each of these workspaces used in a period; where it goes on after now, as if what lives lived on."""
    tariffs = _tariffs(tx, scope, period)
    want = Want(_pieces(period, tariffs), (By.WORKSPACE,), workspaces)
    found = {str(group.key[1]): group.bill for group in _groups(tx, scope, want, tariffs)}
    return {id: found.get(id, Bill()) for id in workspaces}


def _groups(tx: Tx, scope: Scope, want: Want, tariffs: Mapping[str, Tariff]) -> Iterator[Group]:
    for key, sums in groupby(rows.sums(tx, scope, want), attrgetter("key")):
        bill = Bill()
        for one in sums:
            tariff = tariffs.get(one.cluster_id)
            bill.add(one.used, one.model, tariff.at(one.start) if tariff else None, one.start)
        yield Group(key, bill)


def _tariffs(tx: Tx, scope: Scope, period: Period) -> dict[str, Tariff]:
    start, end = (EPOCH + timedelta(seconds=moment) for moment in (period.start, period.end))
    return prices.tariffs(tx, scope, start, end)


def _pieces(period: Period, tariffs: Mapping[str, Tariff], by: Sequence[By] = ()) -> list[Period]:
    return rules.pieces(period, tariffs, by_day=By.DAY in by) if period.seconds else []


def _workspaces(ctx: Context, name: str | None) -> Collection[str] | None:
    """Return the ids of the workspaces that the caller may see and named; None: all of the organisation's."""
    id = rows.workspace_id(ctx.tx, ctx.scope, name) if name is not None else None
    if name is not None and id is None:
        raise not_found()
    if ctx.admin:
        return None if id is None else {id}
    own = set(org_rows.workspaces_of_user(ctx.tx, ctx.scope, ctx.user.id))
    if id is not None and id not in own:
        raise not_found()
    return own if id is None else {id}


def _maker(ctx: Context, name: str | None) -> str | None:
    """Return the id of the person whose workloads count; None: everybody's."""
    if ctx.admin:
        id = rows.maker_id(ctx.tx, ctx.scope, name.lower()) if name is not None else None
        if name is not None and id is None:
            raise not_found()
        return id
    if name is not None and name.lower() not in (ctx.user.login, ctx.user.id):
        raise Refusal("FORBIDDEN", "Members see their own usage. Ask an owner or admin for that of others.")
    return ctx.user.id


def _clusters(ctx: Context, name: str | None) -> Collection[str] | None:
    if name is None:
        return None
    found = cluster_rows.called(ctx.tx, ctx.scope, name)
    if not found:
        raise not_found()
    return found
