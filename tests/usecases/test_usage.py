"""Usage from allocations, and what it costs (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, update

from corral.domain.errors import Refusal
from corral.domain.ids import EPOCH
from corral.domain.prices import PriceTable, second
from corral.domain.usage import PARTS, Bill, By, Used, day_name, month_at
from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.orgs import members, workspace_members, workspaces
from corral.usecases import usage
from corral.usecases import workspaces as workspace_acts
from corral.usecases.context import new_id
from corral.usecases.usage import Query
from tests.conftest import Clock
from tests.metered import Held, forget, hold, price
from tests.world import World

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
EUR = PriceTable("EUR", {"H100": 2_000_000, "*": 1_000_000}, 100_000, 10_000, 744_000)


def ask(world: World, who: str = "admin", org: str = "acme", **query: Any) -> dict[tuple[str | int, ...], Bill]:
    with world.act(who, org=org) as ctx:
        return {group.key: group.bill for group in usage.report(ctx, Query(**query)).groups()}


def total(world: World, who: str = "admin", org: str = "acme", **query: Any) -> Bill:
    with world.act(who, org=org) as ctx:
        return usage.report(ctx, Query(**query)).total()


def refused(world: World, who: str = "admin", **query: Any) -> str:
    with pytest.raises(Refusal) as refusal:
        total(world, who, **query)
    return refusal.value.code


def by_name(found: dict[tuple[str | int, ...], Bill]) -> dict[str | int, Bill]:
    return {key[0]: bill for key, bill in found.items()}


def test_an_allocation_counts_from_its_placement_to_its_release_and_a_live_one_until_now(
    world_on_both: World, clock: Clock
) -> None:
    hold(world_on_both, "over", Held(NOW - 2 * HOUR, NOW - HOUR, gpus=2, model="H100", vcpu=3, ram_mib=5))
    hold(world_on_both, "live", Held(NOW - HOUR, vcpu=1, ram_mib=0, storage_mib=0))
    assert total(world_on_both).used == Used(2 * 3600, 3 * 3600 + 3600, 5 * 3600, 1024 * 3600)
    clock.forward(10)
    assert total(world_on_both).used.vcpu == 4 * 3600 + 10


def test_one_second_of_a_gpu_counts_once_when_it_changes_hands_within_it(world_on_both: World) -> None:
    change = NOW - timedelta(seconds=9.5)
    hold(world_on_both, "first", Held(NOW - timedelta(seconds=20), change, gpus=1, model="H100"))
    hold(world_on_both, "next", Held(change, gpus=1, model="H100"))
    assert total(world_on_both).used.gpu == 20


def test_only_what_lies_in_the_period_counts(world_on_both: World) -> None:
    start, end = NOW - 5 * HOUR, NOW - 3 * HOUR
    hold(world_on_both, "around", Held(NOW - 9 * HOUR, NOW - HOUR))
    hold(world_on_both, "into", Held(NOW - 9 * HOUR, NOW - 4 * HOUR))
    hold(world_on_both, "out", Held(NOW - 4 * HOUR))
    hold(world_on_both, "before", Held(NOW - 9 * HOUR, start))
    hold(world_on_both, "after", Held(end))
    found = by_name(ask(world_on_both, by=[By.WORKLOAD], start=start, end=end))
    assert {name: bill.used.vcpu for name, bill in found.items()} == {"around": 7200, "into": 3600, "out": 3600}


def test_seconds_at_the_edges_of_a_period_count_whole(world_on_both: World) -> None:
    start, second = NOW - HOUR, timedelta(seconds=1)
    hold(world_on_both, "first", Held(start - HOUR, start + 1.25 * second))
    hold(world_on_both, "none", Held(start - HOUR, start + 0.75 * second))
    hold(world_on_both, "last", Held(start + 9.75 * second))
    hold(world_on_both, "later", Held(start + 10 * second))
    found = by_name(ask(world_on_both, by=[By.WORKLOAD], start=start + second / 2, end=start + 10.5 * second))
    assert {name: bill.used.vcpu for name, bill in found.items()} == {"first": 1, "last": 1}


def test_prices_set_within_the_first_second_of_a_period_hold_in_it(world_on_both: World) -> None:
    start = NOW - HOUR
    price(world_on_both, start - HOUR, PriceTable("EUR", {}, 3600))
    price(world_on_both, start + timedelta(milliseconds=700), PriceTable("EUR", {}, 7200))
    hold(world_on_both, "dev", Held(start - HOUR, None, vcpu=1, ram_mib=0, storage_mib=0))
    assert total(world_on_both, start=start, end=start + timedelta(seconds=1)).rounded() == {"EUR": 2}


def test_each_second_costs_what_held_then(world_on_both: World) -> None:
    price(world_on_both, NOW - 9 * HOUR, EUR)
    price(world_on_both, NOW - 2 * HOUR, PriceTable("EUR", {"H100": 5_000_000}))
    price(world_on_both, NOW - HOUR, PriceTable("USD", {"H100": 7_000_000}))
    hold(world_on_both, "dev", Held(NOW - 4 * HOUR, None, 1, "H100", 0, 0, 0))
    assert total(world_on_both).rounded() == {"EUR": 2 * 2_000_000 + 5_000_000, "USD": 7_000_000}


def test_what_was_used_before_there_were_prices_is_said(world_on_both: World) -> None:
    price(world_on_both, NOW - HOUR, PriceTable("EUR", {"H100": 2_000_000}, 1))
    hold(world_on_both, "dev", Held(NOW - 3 * HOUR, None, 1, "H100", 2, 0, 0))
    hold(world_on_both, "other", Held(NOW - 2 * HOUR, None, 1, "A100", 0, 0, 0))
    found = total(world_on_both)
    assert (found.unpriced_gpu, found.unpriced_vcpu) == (2 * 3600 + 2 * 3600, 2 * 2 * 3600)
    assert found.rounded() == {"EUR": 2_000_000 + 2}


def test_usage_is_grouped_by_what_was_asked_in_that_order(world_on_both: World) -> None:
    hold(world_on_both, "a", Held(NOW - HOUR, None, 1, "H100", by="member"))
    hold(world_on_both, "b", Held(NOW - HOUR, None, 2, "A100", by="lead"))
    hold(world_on_both, "c", Held(NOW - HOUR, None, 4, "H100", by="lead", workspace="acme/private"))
    hold(world_on_both, "d", Held(NOW - HOUR, by="lead"))
    by = {
        name: {key: bill.used.gpu // 3600 for key, bill in by_name(ask(world_on_both, by=[By(name)])).items()}
        for name in ("workspace", "user", "workload", "model", "cluster")
    }
    assert by == {
        "workspace": {"private": 4, "research": 3},
        "user": {"lead": 6, "member": 1},
        "workload": {"a": 1, "b": 2, "c": 4, "d": 0},
        "model": {"": 0, "A100": 2, "H100": 5},
        "cluster": {"default": 7},
    }
    keys = [(key[0], key[2]) for key in ask(world_on_both, by=[By.USER, By.WORKSPACE])]
    assert keys == [("lead", "private"), ("lead", "research"), ("member", "research")]


def test_usage_is_grouped_by_day_of_utc(world_on_both: World) -> None:
    midnight = NOW.replace(hour=0)
    hold(world_on_both, "dev", Held(midnight - timedelta(days=1, hours=2)))
    found = ask(world_on_both, by=[By.DAY], start=midnight - timedelta(days=2), end=midnight + HOUR)
    days = {day_name(int(key[0])): bill.used.vcpu for key, bill in found.items()}
    assert days == {"2026-02-27": 7200, "2026-02-28": 86400, "2026-03-01": 3600}


def test_pages_follow_one_another_and_together_are_all(world_on_both: World) -> None:
    for number in range(7):
        hold(world_on_both, f"w{number % 4}", Held(NOW - HOUR, NOW, by=("lead", "member")[number % 2]))
    by = [By.WORKLOAD, By.USER, By.DAY]
    whole, after = list(ask(world_on_both, by=by)), None
    paged: list[Any] = []
    while True:
        with world_on_both.act("admin", org="acme") as ctx:
            page = [group.key for _, group in zip("ab", usage.report(ctx, Query(by)).groups(after), strict=False)]
        if not page:
            break
        paged, after = paged + page, page[-1]
    assert paged == whole
    assert len(whole) == 7


# -- who sees what


@pytest.fixture
def team(world_on_both: World) -> World:
    """Everybody used one hour of vCPUs, each another number of them."""
    for number, (workspace, by) in enumerate(
        [
            ("acme/research", "member"),
            ("acme/research", "lead"),
            ("acme/private", "member"),
            ("rival/research", "rival"),
        ]
    ):
        held = Held(NOW - HOUR, NOW, vcpu=10**number, workspace=workspace, by=by)
        hold(world_on_both, f"w{number}", held, machine=f"m-{workspace[:4]}")
    return world_on_both


def hours(bill: Bill) -> int:
    return bill.used.vcpu // 3600


def test_admins_see_all_of_their_organisation_and_nothing_of_another(team: World) -> None:
    assert hours(total(team, "owner")) == hours(total(team, "admin")) == 111
    assert hours(total(team, "rival", "rival")) == 1000
    assert by_name(ask(team, "rival", "rival", by=[By.USER])).keys() == {"rival"}


def test_members_see_what_they_made_in_their_workspaces_only(team: World) -> None:
    assert hours(total(team, "member")) == 1  # not what they made in `private`, where they are no more
    assert hours(total(team, "lead")) == 10
    assert hours(total(team, "outsider")) == 0
    assert by_name(ask(team, "member", by=[By.USER])).keys() == {"member"}


def test_filters_name_a_workspace_a_person_or_a_cluster(team: World) -> None:
    assert hours(total(team, workspace="research")) == 11
    assert hours(total(team, workspace=team.ids.workspaces["acme/private"])) == 100
    assert hours(total(team, user="Member")) == 101
    assert hours(total(team, user=team.ids.users["lead"], workspace="research")) == 10
    assert hours(total(team, cluster="default")) == 111
    assert hours(total(team, "member", workspace="research", user="member")) == 1


def test_what_is_foreign_is_not_found_as_what_is_absent(team: World) -> None:
    rivals = team.ids.workspaces["rival/research"]
    assert refused(team, workspace="absent") == refused(team, workspace=rivals) == "NOT_FOUND"
    assert refused(team, user="nobody") == refused(team, user="rival") == refused(team, user="operator") == "NOT_FOUND"
    assert refused(team, cluster="absent") == "NOT_FOUND"
    assert refused(team, "member", workspace="private") == "NOT_FOUND"
    assert refused(team, "member", user="lead") == refused(team, "member", user="nobody") == "FORBIDDEN"


def test_removed_workspaces_and_people_keep_their_usage(team: World) -> None:
    with team.act("admin", org="acme", workspace="private") as ctx:
        workspace_acts.remove(ctx)
    with team.db.write() as tx:
        for table in (workspace_members, members):
            tx.run(delete(table).where(table.c.user_id == team.ids.users["lead"]))
    assert hours(total(team)) == 111
    assert hours(total(team, workspace="private")) == 100
    assert hours(total(team, user="lead")) == 10


def test_a_live_workspace_is_meant_before_a_removed_one_of_its_name(team: World) -> None:
    with team.db.write() as tx:
        old = {"org_id": team.ids.orgs["acme"], "slug": "research", "name": "Old", "created_at": NOW}
        tx.run(insert(workspaces).values(id=new_id(tx.now), removed_at=NOW, **old))
    assert hours(total(team, workspace="research")) == 11


def test_a_cluster_that_was_left_keeps_its_usage_and_its_prices(team: World) -> None:
    price(team, NOW - 9 * HOUR, EUR)
    before = total(team).rounded()
    with team.db.write() as tx:
        tx.run(update(tenancies).where(tenancies.c.org_id == team.ids.orgs["acme"]).values(left_at=tx.now))
    assert total(team).rounded() == before
    assert hours(total(team, cluster="default")) == 111


def test_sums_larger_than_a_databases_integer_are_exact(world_on_both: World) -> None:
    most, start = 2**31 - 1, NOW - timedelta(days=365)
    for number in range(150):
        hold(world_on_both, f"w{number}", Held(start, vcpu=most, ram_mib=most, storage_mib=most))
    assert total(world_on_both, start=start).used == Used(0, *[150 * most * 365 * 86400] * 3)


# -- against a model that looks at every second

ORIGINS = ["2028-02-29", "2028-03-01", "2027-03-01", "2026-01-01", "2026-05-01"]
"""Around midnights: a leap day's both, and months of other lengths."""
SPAN_S = 40
moments = st.floats(-SPAN_S, SPAN_S).map(lambda after: timedelta(seconds=round(after, 3)))
helds = st.tuples(
    st.tuples(moments, st.none() | moments),
    st.sampled_from([(0, ""), (1, "H100"), (3, "A100"), (2, "B200")]),
    st.tuples(st.integers(0, 9), st.integers(0, 10**6), st.integers(0, 10**7)),
    st.sampled_from(["acme/research", "acme/private"]),
    st.sampled_from(["default", "own"]),
)
rates = st.sampled_from([0, 1, 999_983, 10**12])
tables = st.builds(
    PriceTable,
    st.sampled_from(["EUR", "USD"]),
    st.dictionaries(st.sampled_from(["H100", "A100", "*"]), rates, max_size=2),
    rates,
    rates,
    rates,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    origin=st.sampled_from(ORIGINS),
    holds=st.lists(helds, max_size=6),
    priced=st.lists(st.tuples(moments, tables, st.sampled_from(["default", "own"])), max_size=5),
    period=st.tuples(moments, moments),
    by=st.lists(st.sampled_from([By.WORKSPACE, By.CLUSTER, By.MODEL, By.DAY, By.USER, By.WORKLOAD]), max_size=3),
)
def test_usage_is_what_looking_at_every_second_gives(
    world_on_both: World,
    clock: Clock,
    origin: str,
    holds: list[Any],
    priced: list[Any],
    period: tuple[timedelta, timedelta],
    by: list[By],
) -> None:
    world, midnight = world_on_both, datetime.fromisoformat(f"{origin}T00:00+00:00")
    forget(world)
    clock.now = midnight + timedelta(seconds=SPAN_S)
    _own_cluster(world)
    held = []
    for number, ((one, other), (gpus, model), amounts, workspace, cluster) in enumerate(holds):
        placed, released = (one, other) if other is None or one <= other else (other, one)
        ends = None if released is None else midnight + released
        place = {"workspace": workspace, "cluster": cluster}
        sizes = dict(zip(("vcpu", "ram_mib", "storage_mib"), amounts, strict=True))
        held.append(Held(midnight + placed, ends, gpus, model, **sizes, **place))
        hold(world, f"w{number}", held[-1], f"m-{cluster}")
    tariff = sorted({midnight + after: (table, cluster) for after, table, cluster in priced}.items())
    for moment, (table, cluster) in tariff:
        price(world, moment, table, cluster)
    start, end = (midnight + after for after in sorted(period))
    if second(start) == second(end):
        end += timedelta(seconds=1)
    model = _every_second(held, tariff, range(second(start), second(end)), tuple(dict.fromkeys(by)) or (By.WORKSPACE,))
    found = ask(world, by=by, start=start, end=end)
    assert {_plain(key): _summary(bill) for key, bill in found.items() if _counts(bill)} == model
    whole = total(world, by=by, start=start, end=end)
    costs: dict[str, int] = {}
    for bill in found.values():
        for currency, parts in bill.cost.items():
            costs[currency] = costs.get(currency, 0) + parts
    assert whole.cost == costs


def _own_cluster(world: World) -> None:
    if "own" in world.ids.clusters:
        return
    with world.db.write() as tx:
        id = world.ids.clusters["own"] = new_id(tx.now)
        tx.run(insert(clusters).values(id=id, hosted=False, created_at=tx.now))
        row = {"cluster_id": id, "org_id": world.ids.orgs["acme"], "slug": "own", "name": "Own"}
        tx.run(insert(tenancies).values(**row, joined_at=tx.now))


def _plain(key: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return a key without ids."""
    return tuple(part for part in key if not (isinstance(part, str) and len(part) == 36))


def _counts(bill: Bill) -> bool:
    return bill.used != Used()


def _summary(bill: Bill) -> tuple[Any, ...]:
    costs = {currency: Fraction(parts, PARTS) for currency, parts in bill.cost.items() if parts}
    return (bill.used, costs, bill.unpriced_gpu, bill.unpriced_vcpu)


def _every_second(held: list[Held], tariff: list[Any], seconds: range, by: tuple[By, ...]) -> dict[Any, Any]:
    found: dict[Any, list[Any]] = {}
    for moment in seconds:
        for number, one in enumerate(held):
            if not second(one.placed) <= moment or (one.released is not None and moment >= second(one.released)):
                continue
            names = {
                By.WORKSPACE: one.workspace.partition("/")[2],
                By.CLUSTER: one.cluster,
                By.MODEL: one.model,
                By.DAY: (EPOCH + timedelta(seconds=moment) - EPOCH).days,
                By.USER: one.by,
                By.WORKLOAD: f"w{number}",
            }
            entry = found.setdefault(tuple(names[name] for name in by), [Used(), {}, 0, 0])
            _one_second(entry, one, [t for at, (t, c) in tariff if c == one.cluster and second(at) <= moment], moment)
    return {
        key: (used, {c: cost for c, cost in costs.items() if cost}, gpu, vcpu)
        for key, (used, costs, gpu, vcpu) in found.items()
        if used != Used()
    }


def _one_second(entry: list[Any], one: Held, so_far: list[PriceTable], moment: int) -> None:
    entry[0] += Used(one.gpus, one.vcpu, one.ram_mib, one.storage_mib)
    table = so_far[-1] if so_far else None
    rate = table.gpu_hour.get(one.model, table.gpu_hour.get("*")) if table else None
    entry[2] += one.gpus if rate is None else 0
    if table is None:
        entry[3] += one.vcpu
        return
    month = month_at(moment).seconds
    cost = Fraction(one.gpus * (rate or 0) + one.vcpu * table.vcpu_hour, 3600)
    cost += Fraction(one.ram_mib * table.ram_gib_hour, 1024 * 3600)
    cost += Fraction(one.storage_mib * table.storage_gib_month, 1024 * month)
    entry[1][table.currency] = entry[1].get(table.currency, Fraction(0)) + cost
