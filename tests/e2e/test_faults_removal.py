"""Cordon and removal of a machine on which real containers run (spec 10)."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from corral.agent.state import StateFolder
from corral.client.errors import CorralError
from tests.e2e import ground
from tests.e2e.stack import WITHIN_S, Stack
from tests.live_server import eventually

pytestmark = pytest.mark.podman


def test_on_a_cordoned_machine_nothing_lands_and_what_runs_goes_on(stack: Stack) -> None:
    machine, cluster = stack.machines[0], stack.owner.org("acme").cluster(stack.cluster)
    stack.create("stays", ssh_keys=["key"])
    try:
        before = ground.first_process(stack, machine, "stays")
        cluster.cordon(machine.name, "disk to be changed")
        with pytest.raises(CorralError, match="cordoned: disk to be changed") as refused:
            stack.create("lands")
        assert refused.value.code == "NO_CAPACITY"
        assert stack.said("stays", "echo on") == "on"
        assert ground.first_process(stack, machine, "stays") == before
        cluster.uncordon(machine.name)
        stack.create("lands")
        stack.terminate("lands")
    finally:
        cluster.uncordon(machine.name)
        stack.terminate("stays")


def test_removal_by_force_ends_session_streams_work_and_credential_for_ever(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    machine, cluster = stack.add_machine(), stack.owner.org("acme").cluster(stack.cluster)
    stack.create("box", ssh_keys=["key"])
    session = stack.open_ssh("box", "echo in; exec cat")
    assert session.stdout is not None
    assert session.stdout.readline() == b"in\n"
    id, key = stack.show("box").id, StateFolder(machine.folder).key()
    with pytest.raises(CorralError) as refused:
        cluster.remove(machine.name)
    assert (refused.value.code, "box" in refused.value.message) == ("NODE_IN_USE", True)
    cluster.remove(machine.name, force=True)
    assert session.wait(5) == 255
    eventually(lambda: "this machine was removed" in machine.log, 5)
    ended = stack.show(id)
    assert (ended.state, "lost" in ended.reason) == ("failed", True)
    assert ground.rows(stack, "select count(*) from allocations where released_at is null") == [(0,)]
    assert machine.process is not None
    assert machine.process.wait(WITHIN_S) == 0
    # The records of what ended stay until the host joins again.
    eventually(lambda: all(what.startswith("record") for what in ground.left(machine, set())), WITHIN_S)
    for _ in range(2):
        answer = httpx.get(
            f"{stack.url}/api/v1/agent/session",
            headers={
                "Authorization": f"Bearer {key}",
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
        assert (answer.status_code, answer.json()["code"]) == (410, "MACHINE_REMOVED")
        machine.start()
        assert machine.process.wait(WITHIN_S) == 0
    assert "removed from its site" in machine.log
    with pytest.raises(CorralError) as gone:
        cluster.machine(machine.name)
    assert gone.value.status == 404


def test_what_may_be_placed_again_runs_elsewhere_and_the_old_machine_stops_when_it_is_heard_of(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack()
    lost, other = stack.add_machine(), stack.add_machine()
    cluster = stack.owner.org("acme").cluster(stack.cluster)
    stack.create("again", machine=lost.name, restart_policy="on_machine_loss", ssh_keys=["key"])
    stack.create("once", machine=lost.name)
    before, once = ground.first_process(stack, lost, "again"), stack.show("once").id
    lost.kill()  # out of reach: what it runs goes on
    gone = cluster.remove(lost.name, force=True)
    assert (gone.placed_again, gone.lost) == (["research/again"], ["research/once"])
    assert gone.stopped == ["research/again", "research/once"]

    eventually(lambda: stack.show("again").machine == other.name, WITHIN_S)
    stack.until("again", "active")
    assert stack.said("again", "echo here") == "here"
    assert stack.show(once).state == "failed"
    assert before.alive
    lost.start()
    eventually(lambda: not ground.first_processes(lost), WITHIN_S)
    assert not before.alive
    assert stack.said("again", "echo still here") == "still here"
    assert ground.rows(stack, "select count(*) from allocations where released_at is null") == [(1,)]
