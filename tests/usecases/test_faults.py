"""Clearing a GPU's fault (spec 10, "GPU faults"), on both databases: what counts from there, and who may be late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest
from sqlalchemy import select

from corral.domain.errors import Refusal
from corral.domain.faults import Acknowledged, Counters
from corral.domain.inventory import GpuState
from corral.store.faults import Shown, Wanted
from corral.store.tables.faults import gpu_faults
from corral.store.tables.journal import journal
from corral.store.tables.machines import gpus, machines
from corral.usecases import faults
from corral.usecases.faults import Answered, Cleared, ToClear
from tests.usecases.test_gpu_evidence import WELL, Host, gpu, latched, silent, told, version, xid
from tests.world import World


def clear(
    host: Host, uuid: str = "GPU-1", who: str = "admin", *, epoch: int = 0, counters: Counters | None = WELL
) -> Cleared:
    """Clear as a machine acknowledges that has read all that its kernel said."""
    said = Acknowledged(host.boot, host.seq, counters)
    return answer(host, ask(host, uuid), said, who, epoch=epoch)


def ask(host: Host, uuid: str = "GPU-1") -> ToClear:
    with host.world.act("admin", org="acme") as ctx:
        return faults.to_clear(ctx, "default", host.name, uuid)


def answer(host: Host, asked: ToClear, said: Acknowledged, who: str = "admin", *, epoch: int = 0) -> Cleared:
    with host.world.act(who, org="acme") as ctx:
        return faults.clear(ctx, "default", host.name, asked.gpu.uuid, Answered(asked, said, epoch))


def listed(world: World, shown: Shown = Shown.OPEN, machine: str | None = None) -> list[tuple[str, str, str]]:
    with world.act("admin", org="acme") as ctx:
        rows = faults.listed(ctx, "default", Wanted(shown, machine), None, 100)
    return [(row["machine"], row["uuid"], row["code"]) for row in rows]


def test_a_cleared_gpu_is_free_and_that_is_audited_once_with_what_was(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79), xid(48))
    before = version(world_on_both)
    done = clear(host)
    assert (latched(world_on_both), done.still) == ({}, ())
    assert version(world_on_both) > before
    (event,) = told(world_on_both, "cluster.node.gpu_fault_cleared")
    assert (event["name"], event["gpu"], event["model"], event["code"]) == ("m", "GPU-1", "H100", "xid_48, xid_79")
    assert [(one["code"], one["evidence"], one["count"]) for one in event["before"]] == [
        ("xid_48", xid(48), 1),
        ("xid_79", xid(79), 1),
    ]
    with world_on_both.db.read() as tx:
        assert {row["cleared_by"] for row in tx.all(select(gpu_faults))} == {"admin"}


def test_what_was_cleared_latches_never_again_and_a_new_line_does(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    clear(host)
    host.report([(1, xid(79))])
    assert latched(world_on_both) == {}
    host.say(xid(79))
    assert latched(world_on_both) == {"xid_79": 1}


def test_a_line_that_nobody_has_judged_yet_is_not_cleared(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    host.seq += 1  # the kernel said another one, and the agent has read it, when the admin clears
    clear(host)
    host.report([(host.seq, xid(95))])
    assert latched(world_on_both) == {"xid_95": 1}


def test_a_fault_that_was_judged_after_the_machine_had_answered_is_not_cleared(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    asked, said = ask(host), Acknowledged(host.boot, host.seq, WELL)
    host.say(xid(79))  # comes between the answer and the commit, and only counts to the latch there is
    done = answer(host, asked, said)
    assert ([row["code"] for row in done.what.latches], [row["code"] for row in done.still]) == ([], ["xid_79"])
    assert latched(world_on_both) == {"xid_79": 2}


def test_of_several_faults_those_that_came_after_the_answer_stay_and_are_told_again(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(48))
    asked, said = ask(host), Acknowledged(host.boot, host.seq, WELL)
    host.say(xid(79))
    done = answer(host, asked, said)
    assert ([row["code"] for row in done.what.latches], [row["code"] for row in done.still]) == (["xid_48"], ["xid_79"])
    events = told(world_on_both, "cluster.node.gpu_fault", "cluster.node.gpu_fault_cleared")
    assert [event["code"] for event in events] == ["xid_48", "xid_79", "xid_48", "xid_79"]


@pytest.mark.parametrize("read_again", [-1, 0, 1])
def test_an_agent_that_cannot_read_the_log_or_has_not_read_on_yet_clears_what_was_judged(
    world_on_both: World, read_again: int
) -> None:
    host = Host(world_on_both)
    host.say(xid(13), xid(79), xid(48))
    done = answer(host, ask(host), Acknowledged(host.boot, read_again, WELL))
    assert ([row["code"] for row in done.what.latches], done.still) == (["xid_48", "xid_79"], ())
    assert latched(world_on_both) == {}
    host.report([(2, xid(79)), (3, xid(48))])
    assert latched(world_on_both) == {}, "they are read again, and were judged"
    host.say(xid(79))
    assert latched(world_on_both) == {"xid_79": 1}


def test_what_such_an_agent_says_meanwhile_is_not_cleared(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    asked = ask(host)
    host.say(xid(48))
    done = answer(host, asked, Acknowledged(host.boot, -1, WELL))
    assert [row["code"] for row in done.what.latches] == ["xid_79"]
    assert latched(world_on_both) == {"xid_48": 1}


def test_a_line_of_a_new_boot_that_comes_meanwhile_is_not_cleared(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    asked = ask(host)
    host.boot, host.seq = "boot-2", -1
    host.say(xid(79))
    assert answer(host, asked, Acknowledged("boot-2", -1, WELL)).what.latches == []
    assert latched(world_on_both) == {"xid_79": 2}
    assert answer(host, ask(host), Acknowledged("boot-2", -1, WELL)).still == ()
    assert latched(world_on_both) == {}


def test_memory_errors_count_from_the_clear(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.counts("GPU-1", ecc_volatile=1, ecc_aggregate=1)
    clear(host, counters=replace(WELL, ecc_volatile=3, ecc_aggregate=3))
    host.counts("GPU-1", ecc_volatile=2, ecc_aggregate=2)  # what was on its way meanwhile
    host.counts("GPU-1", ecc_volatile=3, ecc_aggregate=3)
    assert latched(world_on_both) == {}
    host.counts("GPU-1", ecc_volatile=4, ecc_aggregate=4)
    assert latched(world_on_both) == {"ecc_uncorrected": 1}


@pytest.mark.parametrize(
    ("still", "code"),
    [
        (replace(WELL, nvlinks_up=0), "nvlink_down"),
        (replace(WELL, recovery_action=2), "recovery_action"),
        (replace(WELL, remap_failed=True), "row_remap_failed"),
    ],
)
def test_a_fault_that_is_still_there_fences_again_at_once(world_on_both: World, still: Counters, code: str) -> None:
    host = Host(world_on_both)
    host.counters["GPU-1"] = still
    host.changed()
    assert latched(world_on_both) == {code: 1}
    done = clear(host, counters=still)
    assert [row["code"] for row in done.what.latches] == [row["code"] for row in done.still] == [code]
    assert latched(world_on_both) == {code: 1}
    assert len(told(world_on_both, "cluster.node.gpu_fault")) == 2
    clear(host)
    assert latched(world_on_both) == {}


def test_a_missing_gpu_stays_fenced_until_it_is_back(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.gpus[0] = gpu(1, GpuState.MISSING)
    host.changed()
    assert [row["code"] for row in clear(host, counters=None).still] == ["missing"]
    host.gpus[0] = gpu(1)
    host.changed()
    assert clear(host).still == ()
    assert latched(world_on_both) == {}


def test_a_gpu_that_still_does_not_answer_stays_fenced_until_it_does(world_on_both: World) -> None:
    host = Host(world_on_both)
    silent(host, lost=True)
    assert [row["code"] for row in clear(host, counters=host.counters["GPU-1"]).still] == ["unreadable"]
    host.gpus[0], host.counters["GPU-1"] = gpu(1), WELL
    host.changed()
    assert clear(host).still == ()
    assert latched(world_on_both) == {}


def test_a_gpu_without_a_fault_stays_as_it_is(world_on_both: World) -> None:
    host = Host(world_on_both)
    assert clear(host).what.latches == ()
    assert told(world_on_both, "cluster.node.gpu_fault_cleared") == []


def test_two_admins_clear_and_one_of_them_did_it(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    cleared: list[int] = []
    both = [
        Thread(target=lambda who=who: cleared.append(len(clear(host, who=who).what.latches)))
        for who in ("admin", "owner")
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(cleared) == [0, 1]
    assert len(told(world_on_both, "cluster.node.gpu_fault_cleared")) == 1


def test_parts_are_cleared_with_their_gpu(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1), gpu(1, uuid="MIG-1"))
    host.say(xid(95))
    clear(host)
    assert latched(world_on_both) == latched(world_on_both, "MIG-1") == {}


@pytest.mark.parametrize(("asked", "beside"), [("GPU-1", "MIG-1"), ("MIG-1", "GPU-1")])
def test_each_part_is_told_of_and_the_act_is_audited_once(world_on_both: World, asked: str, beside: str) -> None:
    host = Host(world_on_both, "m", gpu(1), gpu(1, uuid="MIG-1"), gpu(2))
    host.say(xid(95), xid(95, 2))
    clear(host, asked)
    (act,) = told(world_on_both, "cluster.node.gpu_fault_cleared")
    (other,) = told(world_on_both, "cluster.node.gpu_part_cleared")
    assert (act["gpu"], other["gpu"], other["code"]) == (asked, beside, "xid_95")
    with world_on_both.db.read() as tx:
        audit = tx.all(select(journal.c.type).where(journal.c.audit, journal.c.type.like("%.gpu_%")))
    assert [entry["type"] for entry in audit] == ["cluster.node.gpu_fault_cleared"]


def test_a_part_of_which_more_was_said_after_the_answer_stays_fenced_and_is_told_again(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1), gpu(1, uuid="MIG-1"))
    host.say(xid(48))
    asked, said = ask(host), Acknowledged(host.boot, host.seq, WELL)
    host.say(xid(79))
    answer(host, asked, said)
    assert latched(world_on_both) == latched(world_on_both, "MIG-1") == {"xid_79": 1}
    kinds = ("cluster.node.gpu_fault", "cluster.node.gpu_part_cleared")
    of_part = [event["code"] for event in told(world_on_both, *kinds) if event["gpu"] == "MIG-1"]
    assert of_part == ["xid_48", "xid_79", "xid_48", "xid_79"]


def test_an_answer_of_an_older_session_clears_nothing(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    with world_on_both.db.write() as tx:
        tx.run(machines.update().values(session_epoch=2))
    with pytest.raises(Refusal) as refused:
        clear(host, epoch=1)
    assert refused.value.code == "CONFLICT"
    assert latched(world_on_both) == {"xid_79": 1}


def _remove_machine(host: Host) -> str:
    with host.world.db.write() as tx:
        tx.run(machines.update().values(removed_at=tx.now))
    return "NODE_NOT_FOUND"


def _replace_gpu(host: Host) -> str:
    with host.world.db.write() as tx:
        tx.run(gpus.update().values(gone=True))
    return "NOT_FOUND"


@pytest.mark.parametrize("meanwhile", [_remove_machine, _replace_gpu])
def test_what_went_meanwhile_is_not_cleared(world_on_both: World, meanwhile: Callable[[Host], str]) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    code = meanwhile(host)
    with pytest.raises(Refusal) as refused:
        clear(host)
    assert refused.value.code == code
    assert latched(world_on_both) == {"xid_79": 1}


def test_another_organisations_gpu_is_not_there(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    with world_on_both.act("rival", org="rival") as ctx, pytest.raises(Refusal) as refused:
        faults.to_clear(ctx, "default", "m", "GPU-1")
    assert refused.value.code == "NODE_NOT_FOUND"


def test_faults_are_listed_by_what_became_of_them(world_on_both: World) -> None:
    host = Host(world_on_both, "a")
    other = Host(world_on_both, "b", gpu(8), gpu(9))
    host.say(xid(79, 1), xid(48, 2))
    other.say(xid(46, 8))
    clear(host)
    other.gpus[0] = gpu(7, slot=gpu(8).slot)
    other.changed()
    assert listed(world_on_both) == [("a", "GPU-2", "xid_48")]
    assert listed(world_on_both, Shown.GONE) == [("b", "GPU-8", "xid_46")]
    assert listed(world_on_both, Shown.CLEARED) == [("a", "GPU-1", "xid_79")]
    assert len(listed(world_on_both, Shown.ALL)) == 3
    assert listed(world_on_both, Shown.ALL, "b") == [("b", "GPU-8", "xid_46")]
    with world_on_both.act("rival", org="rival") as ctx:
        assert faults.listed(ctx, "default", Wanted(Shown.ALL), None, 100) == []


def test_the_list_pages(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(*(xid(n) for n in (46, 54, 57, 58, 62)))
    seen: list[str] = []
    after = None
    for _ in range(3):
        with world_on_both.act("admin", org="acme") as ctx:
            page = faults.listed(ctx, "default", Wanted(), after, 2)
        seen += [row["code"] for row in page]
        after = page[-1]["id"]
    assert sorted(seen) == ["xid_46", "xid_54", "xid_57", "xid_58", "xid_62"]
