"""Clusters on the command line: leaving, coming back, asking for one; the operator's side; break-glass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Cli, Running


def printed(cli: Cli, who: str, *arguments: str) -> Any:
    ran = cli(who, *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_cluster_is_removed_by_its_typed_name_after_saying_what_that_means(running: Running, cli: Cli) -> None:
    running.world.add_machine("gpu-1")
    assert printed(cli, "admin", "cluster", "token", "create")["install"]
    ran = cli("admin", "cluster", "remove", "default", "--dry-run")
    assert ran.code == 0
    for said in ("stay enrolled: 1 gpu-1", "revoked: 1", "Runs there: nothing", "access of research"):
        assert said in ran.out
    ran = cli("admin", "cluster", "remove", "default")
    assert ran.code == 1 and "NOT_CONFIRMED" in ran.err and "stay enrolled: 1" in ran.err
    ran = cli("admin", "cluster", "remove", "default", "--yes")
    assert ran.code == 1 and "CLUSTER_IN_USE" in ran.err and "research" in ran.err
    assert cli("admin", "workspace", "access", "revoke", "-w", "research", "-c", "default").code == 0
    assert cli("admin", "cluster", "remove", "default", "--yes").code == 0
    ran = cli("admin", "cluster", "list")
    assert "No cluster yet." in ran.err and "corral cluster use-hosted" in ran.err
    assert cli("admin", "cluster", "show", "default").code == 3
    assert cli("admin", "cluster", "use-hosted").code == 0
    ran = cli("admin", "cluster", "list")
    assert "1 of 10" in ran.out and "use-hosted" not in ran.err


def test_the_first_join_token_begins_to_use_the_hosted_cluster(cli: Cli) -> None:
    assert cli("admin", "workspace", "access", "revoke", "-w", "research", "-c", "default").code == 0
    assert cli("admin", "cluster", "remove", "default", "--yes").code == 0
    assert "install.sh" in cli("admin", "cluster", "token", "create", "--pool", "h100").out
    assert [one["slug"] for one in printed(cli, "admin", "cluster", "list")] == ["default"]


def test_a_token_made_from_a_workspace_grants_it_the_pool(cli: Cli) -> None:
    assert cli("admin", "cluster", "token", "create", "-w", "private", "--pool", "h100").code == 0
    (access,) = printed(cli, "admin", "workspace", "access", "show", "-w", "private")
    assert access["pools"] == ["h100"]


def test_a_cluster_is_asked_for_declined_and_made(cli: Cli) -> None:
    first = printed(cli, "admin", "cluster", "request", "Training", "--note", "100 GPUs")
    second = printed(cli, "admin", "cluster", "request", "Serving")
    assert "Training" in cli("operator", "site", "cluster-requests").out
    assert cli("operator", "site", "answer", first["id"]).code == 2
    assert cli("operator", "site", "answer", first["id"], "--slug", "x", "--decline", "y").code == 2
    assert "declined" in cli("operator", "site", "answer", first["id"], "--decline", "no room").out
    assert "made serving" in cli("operator", "site", "answer", second["id"], "--slug", "serving").out
    assert cli("operator", "site", "answer", second["id"], "--slug", "again").code == 1
    shown = cli("admin", "cluster", "requests").out
    assert "no room" in shown and "cluster serving" in shown
    third = printed(cli, "admin", "cluster", "request", "More")
    assert cli("admin", "cluster", "withdraw", third["id"]).code == 0
    states = {one["state"] for one in printed(cli, "admin", "cluster", "requests")}
    assert states == {"withdrawn", "made", "declined"}


def test_the_operator_gives_a_left_cluster_back_or_deletes_it(cli: Cli) -> None:
    made = printed(cli, "operator", "cluster", "create-dedicated", "own", "-o", "acme")
    assert cli("operator", "site", "delete-cluster", made["id"], "--yes").code == 1
    assert cli("admin", "cluster", "remove", "own", "--yes").code == 0
    assert "own" in cli("operator", "site", "clusters").out
    assert cli("operator", "site", "give-back", made["id"], "own-again", "-o", "acme").code == 0
    assert cli("admin", "cluster", "remove", "own-again", "--yes").code == 0
    ran = cli("operator", "site", "delete-cluster", made["id"])
    assert ran.code == 1 and "NOT_CONFIRMED" in ran.err
    assert cli("operator", "site", "delete-cluster", made["id"], "--yes").code == 0
    assert "No dedicated cluster." in cli("operator", "site", "clusters").err


def test_the_operator_sets_an_organisations_limit(cli: Cli) -> None:
    assert "up to 3 machines" in cli("operator", "site", "limit", "3", "-o", "acme").out
    assert "0 of 3" in cli("member", "cluster", "list").out
    assert "up to 10 machines" in cli("operator", "site", "limit", "--default", "-o", "acme").out
    for wrong in (["limit"], ["limit", "3", "--default"]):
        assert cli("operator", "site", *wrong, "-o", "acme").code == 2


def test_the_operator_looks_under_break_glass_until_an_owner_ends_it(cli: Cli) -> None:
    refused = cli("operator", "cluster", "list", "-o", "acme")
    assert refused.code == 4 and "corral site break-glass" in refused.err
    assert cli("operator", "site", "break-glass", "-o", "acme").code == 2
    look = printed(cli, "operator", "site", "break-glass", "-o", "acme", "--reason", "ticket 7")
    assert "default" in cli("operator", "cluster", "list", "-o", "acme").out
    assert cli("operator", "cluster", "rename", "default", "Mine", "-o", "acme").code == 4
    assert "ticket 7" in cli("admin", "org", "looks").out
    assert "org.break_glass.used" in cli("admin", "audit").out
    assert cli("owner", "org", "end-look", look["id"]).code == 0
    assert cli("operator", "cluster", "list", "-o", "acme").code == 4


@pytest.mark.parametrize(
    "command", [["cluster", "request", "x"], ["cluster", "remove", "default", "--yes"], ["org", "looks"]]
)
def test_members_may_not(cli: Cli, command: list[str]) -> None:
    assert cli("member", *command, "-o", "acme").code == 4
