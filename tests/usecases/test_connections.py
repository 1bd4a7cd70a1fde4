"""Streams into compute clusters: who may open one, and when an open one has to end (spec 20, "Connect")."""

from __future__ import annotations

import pytest

from corral.domain.errors import Refusal
from corral.usecases import compute_clusters, connections, ssh_keys
from corral.usecases.connections import PORT, SSH, Target
from tests.world import World, public_key

PLACE = ("acme", "research")


@pytest.fixture
def dev(world_on_both: World) -> World:
    """A compute cluster `dev` with two keys of member's and one of lead's attached."""
    world = world_on_both
    world.add_machine("gpu-1")
    world.add_workload("dev", "gpu-1")
    for who, names in (("member", ("laptop", "desktop")), ("lead", ("laptop",))):
        with world.act(who, *PLACE) as ctx:
            for name in names:
                ssh_keys.add(ctx, name, public_key())
            compute_clusters.attach(ctx, "dev", names)
    return world


def opened(world: World, kind: str = SSH) -> Target:
    with world.act("member", *PLACE) as ctx:
        return connections.open_stream(ctx, "dev", kind, 8888)


def ended_by(world: World, target: Target) -> str:
    """Return the code with which an open stream of member's has to end ("" = it may stay)."""
    try:
        with world.act("member", *PLACE) as ctx:
            connections.still_allowed(ctx, target)
    except Refusal as refusal:
        return refusal.code
    return ""


def test_a_key_detached_ends_its_owners_ssh_though_another_key_is_attached(dev: World) -> None:
    target = opened(dev)
    assert ended_by(dev, target) == ""
    with dev.act("member", *PLACE) as ctx:
        compute_clusters.detach(ctx, "dev", ["laptop"])
    assert ended_by(dev, target) == "NO_SSH_KEY"
    assert ended_by(dev, opened(dev)) == ""


def test_a_removed_key_ends_its_owners_ssh(dev: World) -> None:
    target = opened(dev)
    with dev.act("member") as ctx:
        ssh_keys.remove(ctx, "desktop")
    assert ended_by(dev, target) == "NO_SSH_KEY"


def test_a_key_attached_and_somebody_elses_detached_end_nothing(dev: World) -> None:
    target = opened(dev)
    with dev.act("member", *PLACE) as ctx:
        ssh_keys.add(ctx, "tablet", public_key())
        compute_clusters.attach(ctx, "dev", ["tablet"])
    with dev.act("lead", *PLACE) as ctx:
        compute_clusters.detach(ctx, "dev", ["laptop"])
    assert ended_by(dev, target) == ""


def test_a_port_needs_no_key_and_outlives_one(dev: World) -> None:
    target = opened(dev, PORT)
    with dev.act("member", *PLACE) as ctx:
        compute_clusters.detach(ctx, "dev", ["laptop", "desktop"])
    assert ended_by(dev, target) == ""


def test_a_terminated_cluster_ends_every_stream(dev: World) -> None:
    targets = [opened(dev), opened(dev, PORT)]
    with dev.act("member", *PLACE) as ctx:
        compute_clusters.terminate(ctx, "dev")
    assert [ended_by(dev, target) for target in targets] == ["NOT_ACTIVE", "NOT_ACTIVE"]
