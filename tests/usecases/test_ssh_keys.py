"""SSH keys of people: named, found, and detached everywhere when they go (spec 20, "Connect")."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from corral.domain.errors import Refusal
from corral.store.tables.workloads import allocations, workload_ssh_keys
from corral.store.transaction import Signal, Wake
from corral.usecases import ssh_keys
from tests.world import World, public_key


def test_a_key_is_called_by_its_comment_unless_named(world: World) -> None:
    with world.act("member") as ctx:
        assert ssh_keys.add(ctx, None, public_key("me@laptop")).name == "me@laptop"
        assert ssh_keys.add(ctx, None, public_key("me@laptop")).name == "me@laptop-2"
        assert ssh_keys.add(ctx, None, public_key()).name == "ssh-ed25519"
        assert ssh_keys.add(ctx, "work", public_key("me@laptop")).name == "work"
        with pytest.raises(Refusal) as refused:
            ssh_keys.add(ctx, "work", public_key())
    assert refused.value.code == "NAME_TAKEN"


def test_one_person_has_a_key_once_and_two_people_may_share_one(world: World) -> None:
    key = public_key("shared")
    with world.act("member") as ctx:
        ssh_keys.add(ctx, None, key)
        with pytest.raises(Refusal) as refused:
            ssh_keys.add(ctx, "again", key)
    assert refused.value.code == "CONFLICT"
    with world.act("lead") as ctx:
        ssh_keys.add(ctx, None, key)


def test_keys_are_found_by_name_id_or_fingerprint_and_only_ones_own(world_on_both: World) -> None:
    world = world_on_both
    with world.act("member") as ctx:
        one, two = ssh_keys.add(ctx, "one", public_key()), ssh_keys.add(ctx, "two", public_key())
        assert ssh_keys.resolve(ctx, ["two", one.id, one.fingerprint]) == [two.id, one.id]
        assert ssh_keys.resolve(ctx, []) == []
    for name in ("one", one.id, "\u202e"):
        with pytest.raises(Refusal) as refused, world.act("lead") as ctx:
            ssh_keys.resolve(ctx, [name])
        assert refused.value.code == "INVALID_REQUEST"


def test_a_removed_key_is_detached_everywhere_and_the_machines_and_streams_are_told(world_on_both: World) -> None:
    world = world_on_both
    machine, workload = world.add_machine("gpu-1"), world.add_workload("dev", "gpu-1")
    with world.act("member") as ctx:
        key = ssh_keys.add(ctx, "laptop", public_key())
        row = {"org_id": world.ids.orgs["acme"], "workload_id": workload, "key_id": key.id}
        ctx.tx.run(insert(workload_ssh_keys).values(**row))
    heard: list[Signal] = []
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    with world.act("member") as ctx:
        ssh_keys.remove(ctx, "laptop")
    assert set(heard) == {Signal(Wake.DESIRED, machine), Signal(Wake.STREAMS, workload)}
    with world.db.read() as tx:
        assert tx.scalar(select(allocations.c.generation)) == 2
        assert tx.one(select(workload_ssh_keys)) is None


def test_nobody_removes_anybody_elses(world: World) -> None:
    with world.act("member") as ctx:
        key = ssh_keys.add(ctx, "laptop", public_key())
    for name in (key.id, "laptop"):
        with pytest.raises(Refusal) as refused, world.act("owner") as ctx:
            ssh_keys.remove(ctx, name)
        assert refused.value.code == "NOT_FOUND"
