"""Prices, usage and budgets on the command line, against a real site."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from corral.client.api import Corral
from corral.client.money import UsageQuery
from corral.usecases import clusters
from tests.cli.conftest import Cli, Running
from tests.metered import Held, hold

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def used(running: Running) -> Running:
    """Two workloads of an hour each, in two months; and a dedicated cluster `own`."""
    with running.world.act("operator", org="acme") as ctx:
        clusters.create_dedicated(ctx, "own", "Own")
    hold(running.world, "train", Held(NOW - HOUR, None, 2, "H100", 4, 8192, 0))
    hold(running.world, "old", Held(NOW - 24 * HOUR, NOW - 23 * HOUR, by="lead", workspace="acme/private"))
    return running


def test_prices_are_set_a_part_at_a_time_and_shown(used: Running, cli: Cli) -> None:
    assert "No prices" in cli("member", "cluster", "prices", "show", "-c", "own").out
    ran = cli("admin", "cluster", "prices", "set", "-c", "own", "--vcpu", "0.01")
    assert ran.code == 2 and "--currency" in ran.err
    first = ("--currency", "EUR", "--gpu", "H100=2.50", "--gpu", "*=1", "--vcpu", "0.01")
    assert cli("admin", "cluster", "prices", "set", "-c", "own", *first).code == 0
    assert cli("admin", "cluster", "prices", "set", "-c", "own", "--gpu", "*=", "--ram", "0.002").code == 0
    shown = json.loads(cli("member", "cluster", "prices", "show", "-c", "own", "--json").out)["current"]
    assert (shown["gpu_hour"], shown["vcpu_hour"], shown["ram_gib_hour"]) == ({"H100": "2.50"}, "0.01", "0.002")
    out = cli("member", "cluster", "prices", "show", "-c", "own", "--history").out
    assert out.count("EUR") == 2 and "*=1.00" in out
    assert "H100, an hour" in cli("member", "cluster", "prices", "show", "-c", "own").out
    bad = cli("admin", "cluster", "prices", "set", "-c", "own", "--gpu", "H100")
    assert bad.code == 2 and "MODEL=AMOUNT" in bad.err


def test_the_operator_sets_what_the_hosted_cluster_costs(used: Running, cli: Cli) -> None:
    refused = cli("admin", "cluster", "prices", "set", "-c", "default", "--currency", "EUR")
    assert refused.code == 4 and "operator" in refused.err
    assert cli("operator", "site", "prices", "set", "--currency", "CHF", "--gpu", "*=3").code == 0
    assert "3.00" in cli("operator", "site", "prices", "show").out
    assert "CHF" in cli("operator", "site", "prices", "show", "--history").out
    assert "the operator" in cli("member", "cluster", "prices", "show", "-c", "default").out


def test_usage_is_shown_with_its_cost_and_what_has_none(used: Running, cli: Cli) -> None:
    ran = cli("admin", "usage")
    assert "research" in ran.out and "private" not in ran.out
    assert "Without a price" in ran.err and "2.00 GPU-hours" in ran.err
    cli("operator", "site", "prices", "set", "--currency", "CHF", "--gpu", "*=3")
    ran = cli("admin", "usage", "--by", "workload,model", "--from", "2026-02-01")
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines] == ["WORKLOAD", "old", "train", "total"]
    assert lines[2][1:6] == ["H100", "2.00", "4.00", "8.00", "0.00"]
    assert "(no GPU)" in ran.out


def test_usage_of_a_month_of_a_person_of_a_workspace(used: Running, cli: Cli) -> None:
    def names(*arguments: str, who: str = "admin") -> list[str]:
        return [
            row["workload"]
            for row in json.loads(cli(who, "usage", "--by", "workload", "--json", *arguments).out)["items"]
        ]

    assert names("--month", "2026-02") == ["old"]
    assert names("--from", "2026-02-28", "--to", "2026-03-01") == ["old"]
    assert names("--from", "2026-02-28T00:00:00Z", "--user", "member") == ["train"]
    assert names("--from", "2026-02-28", "-w", "private") == ["old"]
    assert names("--from", "2026-02-28", who="member") == ["train"]
    assert cli("member", "usage", "--user", "lead").code == 4
    assert cli("admin", "usage", "--month", "2026-02", "--to", "2026-02-03").code == 2
    assert cli("admin", "usage", "--month", "2026-13").code == 2
    assert cli("admin", "usage", "--by", "workload,machine").code == 2


def test_usage_as_csv(used: Running, cli: Cli) -> None:
    ran = cli("admin", "usage", "--csv", "--by", "workspace", "--month", "2026-02")
    assert ran.out.splitlines()[0].startswith("workspace,workspace_id,gpu_seconds,")
    assert ran.out.splitlines()[1].startswith("private,")
    assert cli("admin", "usage", "--csv", "-w", "absent").code == 3


def test_a_budget_is_set_shown_and_removed(used: Running, cli: Cli) -> None:
    cli("operator", "site", "prices", "set", "--currency", "EUR", "--gpu", "*=3")
    assert cli("admin", "workspace", "budget", "show", "-w", "research").code == 3
    made = cli("admin", "workspace", "budget", "set", "1000", "EUR", "--at", "75", "-w", "research")
    assert made.code == 0 and "1000.00 EUR" in made.out and "75%" in made.out
    assert "research" in cli("owner", "workspace", "budget", "list").out
    assert "0%" in cli("owner", "workspace", "budget", "show", "-w", "research").out
    assert cli("member", "workspace", "budget", "list").code == 4
    refused = cli("admin", "workspace", "budget", "set", "1e3", "EUR", "-w", "research")
    assert refused.code == 1 and "decimal string" in refused.err
    assert cli("admin", "workspace", "budget", "remove", "-w", "research").code == 0
    assert "No budget" in cli("owner", "workspace", "budget", "list").err


def test_the_sdk_reads_all_pages_of_one_period(used: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.client import transport

    for number in range(3):
        hold(used.world, f"w{number}", Held(NOW - HOUR))
    call = transport.Transport.call

    def small(self: transport.Transport, method: str, path: str, *args: object, **kwargs: dict[str, object]) -> object:
        if path.endswith("/usage"):
            kwargs["params"]["page_size"] = 1
        return call(self, method, path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(transport.Transport, "call", small)
    with Corral(used.site.url, used.world.tokens["admin"]) as corral:
        report = corral.org("acme").usage(UsageQuery(("workload", "day")))
        assert [group.workload for group in report.groups] == ["train", "w0", "w1", "w2"]
        assert report.total.gpu_seconds == 7200
        assert (report.start, report.end) == ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z")
        assert b"".join(corral.org("acme").usage_csv()).startswith(b"workspace,")
