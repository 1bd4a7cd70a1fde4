"""Clusters, machines and compute clusters on the command line, with simulated machines that speak the real protocol."""

from __future__ import annotations

import json
import threading

import pytest

from tests.cli.conftest import Cli, Running


def test_a_join_token_prints_the_install_line_and_is_listed_without_its_secret(cli: Cli) -> None:
    ran = cli("admin", "cluster", "token", "create", "--pool", "h100", "--label", "owner=team-a")
    assert ran.code == 0 and ran.out.count("\n") == 1 and "install.sh" in ran.out
    made = json.loads(cli("admin", "cluster", "token", "create", "--json").out)
    listed = cli("admin", "cluster", "token", "list")
    assert "pool=h100" in listed.out and made["token"] not in listed.out
    assert cli("admin", "cluster", "token", "revoke", made["id"]).code == 0
    assert made["id"] not in cli("admin", "cluster", "token", "list").out
    ran = cli("admin", "cluster", "token", "create", "--label", "gpu=8")
    assert ran.code == 1 and "RESERVED_LABEL" in ran.err
    assert cli("admin", "cluster", "token", "create", "--label", "nonsense").code == 2


def test_the_operator_makes_a_dedicated_cluster_and_an_owner_renames_it(cli: Cli) -> None:
    assert cli("operator", "cluster", "create-dedicated", "own", "-o", "acme").code == 0
    assert cli("owner", "cluster", "rename", "own", "Our own").code == 0
    assert "Our own" in cli("owner", "cluster", "show", "own").out
    assert cli("owner", "cluster", "use-hosted").code == 0


@pytest.mark.usefixtures("fleet")
def test_a_machine_is_cordoned_shown_and_removed(cli: Cli) -> None:
    assert cli("admin", "machine", "cordon", "sim-00001", "--reason", "new \x1b[1mfan").code in (0, 1)
    assert cli("admin", "machine", "cordon", "sim-00001", "--reason", "new fan").code == 0
    assert "cordoned: new fan" in cli("admin", "machine", "list").out
    assert "by admin" in cli("admin", "machine", "show", "sim-00001").out
    assert cli("admin", "machine", "uncordon", "sim-00001").code == 0
    assert "research" in cli("admin", "machine", "remove", "sim-00001", "--dry-run").out
    ran = cli("admin", "machine", "remove", "sim-00001")
    assert ran.code == 1 and "NOT_CONFIRMED" in ran.err
    assert cli("admin", "machine", "remove", "sim-00001", "--yes").code == 0
    assert cli("admin", "machine", "show", "sim-00001").code == 3


@pytest.mark.usefixtures("fleet")
def test_members_see_the_machines_of_their_workspace(cli: Cli) -> None:
    for arguments in (["machine", "list"], ["machine", "list", "-w", "research"]):
        out = cli("member", *arguments).out
        assert "AVAILABLE" in out and "4 of 4" in out and "available" in out
    assert cli("outsider", "machine", "list", "-w", "research").code == 3


@pytest.mark.usefixtures("fleet")
def test_a_compute_cluster_from_creation_to_its_end(cli: Cli) -> None:
    ran = cli("member", "compute", "create", "train", "--gpus", "3", "--wait")
    assert ran.code == 0 and "train: active" in ran.err and "corral ssh train" in ran.out
    assert "3 x NVIDIA" in cli("member", "compute", "list").out
    assert "3 x NVIDIA" in cli("member", "compute", "show", "train").out
    assert "is not pulled" in cli("member", "compute", "logs", "train").out

    ran = cli("member", "compute", "create", "more", "--gpus", "5")
    assert ran.code == 1 and "NO_CAPACITY" in ran.err and ran.err.count("sim-00001") == 1
    assert "GPUs free, 5 asked" in cli("member", "compute", "explain", "--gpus", "5").out

    ran = cli("member", "compute", "terminate", "train")
    assert ran.code == 1 and "NOT_CONFIRMED" in ran.err and "its storage is deleted" in ran.err
    assert cli("member", "compute", "terminate", "train", "--dry-run").code == 0
    assert json.loads(cli("member", "compute", "show", "train", "--json").out)["state"] == "active"
    ran = cli("member", "compute", "terminate", "train", "--yes", "--wait")
    assert ran.code == 0 and "is terminated" in ran.out
    assert cli("member", "compute", "list").out == ""
    assert "terminated" in cli("member", "compute", "list", "--all").out


@pytest.mark.usefixtures("fleet")
def test_what_waits_in_the_queue_is_seen_to_become_active(cli: Cli) -> None:
    for name in ("one", "two"):
        assert cli("member", "compute", "create", name, "--gpus", "4", "--wait").code == 0
    ran = cli("member", "compute", "create", "three", "--gpus", "4", "--queue")
    assert ran.code == 0 and "waits" in ran.out
    assert cli("member", "compute", "terminate", "one", "--yes").code == 0
    ran = cli("member", "compute", "wait", "three")
    assert ran.code == 0 and "three: active" in ran.err


@pytest.mark.usefixtures("fleet")
def test_keys_are_attached_and_detached(running: Running, cli: Cli) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Yc1m4cS8C2h0S0m8b5a0a1b2c3d4e5f6a7b8c9d0e mine"
    with running.world.act("member") as ctx:
        from corral.usecases import ssh_keys

        ssh_keys.add(ctx, "mine", key)
    assert cli("member", "compute", "create", "train").code == 0
    assert "mine" in cli("member", "compute", "keys", "list", "train").out
    assert cli("member", "compute", "keys", "detach", "train", "mine").code == 0
    assert cli("member", "compute", "keys", "list", "train").out == ""
    assert "mine" in cli("member", "compute", "keys", "attach", "train").out


@pytest.mark.usefixtures("fleet")
def test_events_are_listed_with_filters(cli: Cli) -> None:
    out = cli("admin", "events").out
    assert "cluster.node.joined" in out and "cluster.node.up" in out
    out = cli("admin", "events", "--type", "cluster.node.up", "--machine", "sim-00001", "-c", "default").out
    assert out.count("cluster.node.up") == 1 and "joined" not in out
    assert cli("admin", "events", "--since", "not a time").code == 2
    assert "cluster.token.created" in cli("admin", "audit", "--limit", "500").out
    assert cli("member", "audit").code == 4


def test_events_are_followed_across_a_broken_connection(running: Running, cli: Cli) -> None:
    """Nothing is skipped and nothing comes twice, though the stream is cut after every event."""
    from corral.client import Corral

    seen: list[int] = []
    rounds = 3

    def follow() -> None:
        with Corral(running.site.url, running.world.tokens["admin"], sleep=lambda _: None) as corral:
            after = None
            while len(seen) < rounds:
                for entry in corral.org("acme").follow_events(after=after):
                    seen.append(entry.seq)
                    after = entry.id
                    break

    running.world.add_machine("gpu-1")
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        reason = 0
        while thread.is_alive():
            reason += 1
            assert cli("admin", "machine", "cordon", "gpu-1", "--reason", f"round {reason}").code == 0
    finally:
        thread.join(30)
    assert seen == list(range(seen[0], seen[0] + rounds))
