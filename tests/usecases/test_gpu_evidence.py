"""What machines say of their GPUs is latched (spec 10, "GPU faults"), on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.faults import TOLD_MOST, TOLD_WITHIN, UNREADABLE_S, Counters, Health
from corral.domain.inventory import Gpu, GpuState, Inventory
from corral.domain.machines import MachineRef
from corral.domain.sessions import Opened, Report
from corral.store import journal, machines
from corral.store.tables.clusters import tenancies
from corral.store.tables.faults import gpu_faults
from corral.store.tables.journal import journal as journal_entries
from corral.store.tables.workloads import allocations, gpu_holds
from corral.store.transaction import Scope
from corral.usecases import reports
from tests.placing import allocation, code_of, create, workload
from tests.world import World

WELL = Counters(0, 0, False, 18, 18, 0)
UP_TO_MANY = 10**6


def gpu(number: int, state: GpuState = GpuState.OK, **other: Any) -> Gpu:
    return replace(Gpu("nvidia", f"GPU-{number}", f"0000:{number:02x}:00.0", "H100", 81920, "", state, "", ""), **other)


def xid(number: int, gpu: int = 1, rest: str = "") -> str:
    return f"NVRM: Xid (PCI:0000:{gpu:02x}:00): {number}{rest}"


class Host:
    """A machine that reports GPUs 1 and 2, in the world's organisation `acme`."""

    def __init__(self, world: World, name: str = "m", *gpus: Gpu) -> None:
        self.world, self.name = world, name
        world.add_machine(name, gpu_count=0)
        self.gpus = list(gpus or (gpu(1), gpu(2)))
        self.counters = {one.uuid: WELL for one in self.gpus}
        self.probe, self.boot, self.seq, self.digests = "ok", "boot-1", 0, 0
        self.changed()

    @property
    def ref(self) -> MachineRef:
        ids = self.world.ids
        return MachineRef(ids.machines[self.name], ids.orgs["acme"], ids.clusters["default"], self.name)

    @property
    def opened(self) -> Opened:
        return Opened(self.ref.id, self.ref.org_id, self.ref.cluster_id, self.name, 0, "inc")

    def report(self, lines: list[tuple[int, str]], inventory: Inventory | None = None) -> int:
        """Take a report in; return up to which line it is judged."""
        digest = f"{self.name}-{self.digests}"
        said = Report("1", digest, inventory, (), (), boot_id=self.boot, kernel_lines=lines)
        with self.world.db.write() as tx:
            return reports.receive(tx, self.opened, said).kernel.seen

    def say(self, *texts: str) -> int:
        """Have the kernel say new lines."""
        lines = [(self.seq + n, text) for n, text in enumerate(texts, 1)]
        self.seq += len(texts)
        return self.report(lines)

    def changed(self) -> None:
        """Report the inventory anew."""
        self.digests += 1
        health = [Health("nvidia", one.uuid, self.counters.get(one.uuid, WELL)) for one in self.gpus]
        facts = {"gpu_probe": self.probe}
        found = Inventory(f"{self.name}-{self.digests}", "host", 64, 65536, 10**6, self.gpus, facts, health)
        self.report([], found)

    def counts(self, uuid: str, **counters: Any) -> None:
        self.counters[uuid] = replace(self.counters[uuid], **counters)
        self.changed()


def latched(world: World, uuid: str = "GPU-1") -> dict[str, int]:
    """Return a GPU's live latches, code -> count."""
    with world.db.read() as tx:
        rows = tx.all(select(gpu_faults).where(gpu_faults.c.uuid == uuid, gpu_faults.c.cleared_at.is_(None)))
    return {row["code"]: row["count"] for row in rows}


def told(world: World, *types: str) -> list[dict[str, Any]]:
    """Return what events of these types say, the oldest first."""
    with world.db.read() as tx:
        want = journal.Filter(view="event", types=types)
        found = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=UP_TO_MANY)
    return [dict(entry["data"]) for entry in reversed(found)]


def version(world: World) -> int:
    with world.db.read() as tx:
        return int(tx.scalar(select(tenancies.c.version).where(tenancies.c.org_id == world.ids.orgs["acme"])))


def test_a_fatal_xid_latches_and_people_are_told(world_on_both: World) -> None:
    host = Host(world_on_both)
    before = version(world_on_both)
    line = xid(79, 1, ", pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert host.say(line) == 1
    assert latched(world_on_both) == {"xid_79": 1}
    assert latched(world_on_both, "GPU-2") == {}
    assert version(world_on_both) > before, "placement reads the machine again"
    assert told(world_on_both, "cluster.node.gpu_fault") == [
        {
            "name": "m",
            "gpu": "GPU-1",
            "model": "H100",
            "code": "xid_79",
            "reason": "fallen off the bus",
            "evidence": line,
        }
    ]


def test_an_applications_error_is_told_and_fences_nothing(world_on_both: World) -> None:
    host = Host(world_on_both)
    before = version(world_on_both)
    host.say(xid(31, 1, ", pid=7, name=python3, Ch 8"), xid(999), xid(31, 1, ", pid=7, name=python3, Ch 8"))
    assert latched(world_on_both) == {}
    assert version(world_on_both) == before
    events = told(world_on_both, "cluster.node.gpu_event")
    assert [(e["gpu"], e["code"], e["look"], e["times"], e["process"]) for e in events] == [
        ("GPU-1", "xid_31", False, 2, "7/python3"),
        ("GPU-1", "xid_999", True, 1, ""),
    ]


def test_one_cause_makes_one_fence(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79), xid(119), xid(154, 1, ", GPU recovery action changed from 0x0 (None) to 0x1 (Reset)"))
    host.say(xid(48, 2), xid(63, 2), xid(94, 2))
    host.counts("GPU-2", ecc_volatile=1, ecc_aggregate=1)
    assert latched(world_on_both) == {"xid_79": 3}
    assert latched(world_on_both, "GPU-2") == {"xid_48": 3}
    assert len(told(world_on_both, "cluster.node.gpu_fault")) == 2


def test_another_cause_is_another_latch(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(48))
    host.say(xid(79))
    assert latched(world_on_both) == {"xid_48": 1, "xid_79": 1}


def test_lines_of_the_past_count_once_whoever_restarts(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79), xid(13))
    for _ in range(3):
        assert host.report([(1, xid(79)), (2, xid(13))]) == 2
    assert latched(world_on_both) == {"xid_79": 1}
    assert len(told(world_on_both, "cluster.node.gpu_event")) == 1
    host.boot = "boot-2"
    assert host.report([(1, xid(79))]) == 1
    assert latched(world_on_both) == {"xid_79": 2}, "another boot counts anew"


def test_lines_wait_for_the_inventory_that_names_their_gpus(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.digests += 1  # it changed, and the site has not got it yet
    assert host.report([(5, xid(79, 3))]) == -1
    host.gpus.append(gpu(3))
    host.changed()
    assert host.report([(5, xid(79, 3))]) == 5
    assert latched(world_on_both, "GPU-3") == {"xid_79": 1}


def test_a_fault_in_a_slot_that_no_gpu_has_is_told(world_on_both: World) -> None:
    Host(world_on_both).say(xid(79, 9))
    (event,) = told(world_on_both, "cluster.node.gpu_event")
    assert (event["gpu"], event["slot"], event["code"], event["look"]) == ("", "0000:09:00", "xid_79", True)


def test_three_gpus_off_the_bus_are_three_fences(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(6), gpu(7), gpu(9))
    host.say(*(xid(79, n, ", GPU has fallen off the bus.") for n in (6, 7, 9)))
    assert [latched(world_on_both, f"GPU-{n}") for n in (6, 7, 9)] == [{"xid_79": 1}] * 3


def test_parts_of_a_gpu_are_fenced_with_it(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1), gpu(1, uuid="MIG-1"), gpu(2))
    host.say(xid(95))
    host.counts("GPU-1", remap_failed=True)
    assert latched(world_on_both) == latched(world_on_both, "MIG-1") == {"xid_95": 1, "row_remap_failed": 1}
    assert latched(world_on_both, "GPU-2") == {}


def test_counters_fence_above_what_was_judged(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.counts("GPU-1", ecc_volatile=1, ecc_aggregate=1)
    assert latched(world_on_both) == {"ecc_uncorrected": 1}
    host.counts("GPU-2", recovery_action=1)
    assert latched(world_on_both) == {"ecc_uncorrected": 1}, "the same counter again says nothing"
    assert latched(world_on_both, "GPU-2") == {"recovery_action": 1}
    host.counts("GPU-1", ecc_volatile=2, ecc_aggregate=2)
    assert latched(world_on_both) == {"ecc_uncorrected": 2}


def test_links_that_were_up_and_are_all_down_fence(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.counts("GPU-1", nvlinks_up=3)
    assert latched(world_on_both) == {}
    host.counts("GPU-1", nvlinks_up=0)
    assert latched(world_on_both) == {"nvlink_down": 1}


def test_a_gpu_that_went_missing_latches_and_stays_listed(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.gpus[0] = gpu(1, GpuState.MISSING, detail="the driver does not list it any more")
    host.changed()
    assert latched(world_on_both) == {"missing": 1}
    host.gpus[0] = gpu(1)
    host.changed()
    assert latched(world_on_both) == {"missing": 1}, "until an admin clears it"


def test_a_gpu_that_is_not_reported_any_more_is_missing_too(world_on_both: World) -> None:
    host = Host(world_on_both)
    del host.gpus[0]
    host.changed()
    assert latched(world_on_both) == {"missing": 1}


def test_a_driver_that_does_not_work_latches_nothing(world_on_both: World) -> None:
    host = Host(world_on_both)
    for probe in ("driver mismatch: 580 and 570", "stuck: process 8", "failed", "none", "starting"):
        host.probe = probe
        host.gpus = [gpu(1, GpuState.UNREADABLE), gpu(2, GpuState.MISSING)]
        host.changed()
    host.probe, host.gpus = "starting", []
    host.changed()
    assert latched(world_on_both) == latched(world_on_both, "GPU-2") == {}
    host.probe, host.gpus = "ok", [gpu(1, GpuState.UNREADABLE)]
    host.changed()
    assert latched(world_on_both) == {}, "one that does not answer is not assignable, and has no fault"
    assert latched(world_on_both, "GPU-2") == {"missing": 1}


def test_a_gpu_that_never_told_its_identity_latches_nothing(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1, GpuState.UNREADABLE, uuid="unidentified-0000:01:00.0"))
    host.say(xid(79))
    assert latched(world_on_both, "unidentified-0000:01:00.0") == {}


def test_a_latch_follows_its_gpu_to_another_slot_and_machine(world_on_both: World) -> None:
    here, there = Host(world_on_both, "a"), Host(world_on_both, "b", gpu(8))
    here.say(xid(48))
    here.gpus[0] = gpu(1, slot="0000:05:00.0")
    here.changed()
    assert latched(world_on_both) == {"xid_48": 1}
    del here.gpus[0]
    there.gpus.append(gpu(1, slot="0000:0f:00.0"))
    there.changed()
    here.changed()
    assert latched(world_on_both) == {"xid_48": 1}, "it was moved, so it is not missing"
    with world_on_both.db.read() as tx:
        row = tx.one(select(gpu_faults.c.machine_id))
    assert row is not None and row["machine_id"] == there.ref.id


MOVES = ("cluster.node.gpu_fault", "cluster.node.gpu_fault_cleared")


def moves(world: World, uuid: str = "GPU-1") -> list[tuple[str, str, str]]:
    """Return what was told of a faulty GPU: machine, codes, and how it moved ("" = it did not)."""
    events = [event for event in told(world, *MOVES) if event["gpu"] == uuid]
    return [(e["name"], e["code"], next((m for m in ("replaced", "returned") if e.get(m)), "")) for e in events]


def swap(host: Host, *, out: bool) -> None:
    """Put another GPU into the slot of the first, or the first back."""
    host.gpus[0] = gpu(3, slot=gpu(1).slot) if out else gpu(1)
    host.changed()


def test_a_replaced_gpus_slot_is_free_of_its_fault_and_that_is_told_once(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    swap(host, out=True)
    host.gpus.append(gpu(4))
    host.changed()
    assert latched(world_on_both, "GPU-3") == {}
    (event,) = told(world_on_both, "cluster.node.gpu_fault_cleared")
    assert (event["gpu"], event["code"], event["replaced"]) == ("GPU-1", "xid_79", True)


def test_a_replaced_gpu_that_is_put_back_comes_with_its_faults_and_people_are_told(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(48), xid(79))
    for _ in range(2):
        swap(host, out=True)
        swap(host, out=False)
        swap(host, out=False)
    assert latched(world_on_both) == {"xid_48": 1, "xid_79": 1}
    away, back = ("m", "xid_48, xid_79", "replaced"), ("m", "xid_48, xid_79", "returned")
    assert moves(world_on_both) == [("m", "xid_48", ""), ("m", "xid_79", ""), away, back, away, back]


def test_a_faulty_gpu_on_another_machine_is_fenced_there_and_people_are_told(world_on_both: World) -> None:
    here, there = Host(world_on_both, "a"), Host(world_on_both, "b", gpu(8))
    here.say(xid(79))
    swap(here, out=True)
    there.gpus.append(gpu(1, slot="0000:0f:00.0"))
    there.changed()
    there.changed()
    assert moves(world_on_both) == [("a", "xid_79", ""), ("a", "xid_79", "replaced"), ("b", "xid_79", "returned")]


def test_a_faulty_gpu_of_a_removed_machine_is_told_of_where_it_comes_next(world_on_both: World) -> None:
    here, there = Host(world_on_both, "a"), Host(world_on_both, "b", gpu(8))
    here.say(xid(79))
    with world_on_both.db.write() as tx:
        machines.save(tx, here.ref, {"removed_at": tx.now})
    there.gpus.append(gpu(1, slot="0000:0f:00.0"))
    there.changed()
    assert moves(world_on_both) == [("a", "xid_79", ""), ("b", "xid_79", "returned")]


def test_a_machine_that_swaps_its_gpus_endlessly_is_told_of_only_so_often(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    for _ in range(TOLD_MOST + 5):
        swap(host, out=True)
        swap(host, out=False)
    gone = [one for one in moves(world_on_both) if one[2] == "replaced"]
    assert len(gone) == TOLD_MOST
    assert moves(world_on_both)[-1][2] == "returned", "what is told last is what is so"
    swap(host, out=True)
    with world_on_both.db.write() as tx:
        tx.run(update(journal_entries).values(at=tx.now - TOLD_WITHIN))
    host.changed()
    assert moves(world_on_both)[-1][2] == "replaced", "told later, when it is still so"


def test_two_machines_that_claim_one_faulty_gpu_are_told_of_only_so_often(world_on_both: World) -> None:
    hosts = Host(world_on_both, "a"), Host(world_on_both, "b")
    hosts[0].say(xid(79))
    for n in range(4 * TOLD_MOST):
        hosts[n % 2].changed()
    assert len(moves(world_on_both)) <= 2 * TOLD_MOST + 2


def test_those_whose_work_runs_on_a_faulty_gpu_are_told_in_their_workspace(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1))
    create(world_on_both, Creation("dev", gpus=1))
    host.gpus.append(gpu(2))
    host.changed()
    host.say(xid(13), xid(79), xid(79, 2))
    host.say(xid(79))
    work = workload(world_on_both, "dev")
    with world_on_both.db.read() as tx:
        want = journal.Filter(types=["workload.gpu_fault"], workspaces=[work["workspace_id"]])
        (event,) = journal.newest_first(tx, Scope(world_on_both.ids.orgs["acme"]), want, before=None, limit=10)
    assert (event["workload_id"], event["machine_id"], event["audit"]) == (work["id"], host.ref.id, False)
    assert event["data"] == {
        "name": "dev",
        "machine": "m",
        "gpu": "GPU-1",
        "model": "H100",
        "code": "xid_79",
        "reason": "fallen off the bus",
    }


def test_those_whose_work_has_ended_are_not_told(world_on_both: World) -> None:
    host = Host(world_on_both, "m", gpu(1))
    create(world_on_both, Creation("dev", gpus=1))
    with world_on_both.db.write() as tx:
        tx.run(update(allocations).values(released_at=tx.now))
        tx.run(update(gpu_holds).values(released_at=tx.now))
    host.say(xid(79))
    assert told(world_on_both, "workload.gpu_fault") == []


def silent(host: Host, number: int = 0, **counters: Any) -> None:
    """A GPU does not answer; so its state is told, and no counter."""
    host.gpus[number] = replace(host.gpus[number], state=GpuState.UNREADABLE, detail="Unknown Error")
    host.counters[host.gpus[number].uuid] = replace(Counters(), **counters)
    host.changed()


def test_a_gpu_that_does_not_answer_for_long_is_latched_and_one_that_did_not_for_a_moment_is_not(
    world_on_both: World,
) -> None:
    host = Host(world_on_both)
    silent(host)
    silent(host, unreadable_s=UNREADABLE_S // 2)
    assert latched(world_on_both) == {}
    silent(host, unreadable_s=UNREADABLE_S)
    silent(host, unreadable_s=2 * UNREADABLE_S)
    assert latched(world_on_both) == {"unreadable": 1}
    assert latched(world_on_both, "GPU-2") == {}
    host.gpus[0], host.counters["GPU-1"] = gpu(1), WELL
    host.changed()
    assert latched(world_on_both) == {"unreadable": 1}, "until an admin clears it"


def test_a_gpu_that_its_driver_calls_lost_is_latched_at_once(world_on_both: World) -> None:
    host = Host(world_on_both)
    silent(host, lost=True)
    assert latched(world_on_both) == {"unreadable": 1}


def test_a_gpu_that_is_silent_after_another_fault_is_that_fault(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(xid(79))
    silent(host, lost=True)
    assert latched(world_on_both) == {"xid_79": 1}


def test_a_driver_that_does_not_work_makes_no_gpu_silent(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.probe = "driver mismatch: 580 and 570"
    silent(host, unreadable_s=UNREADABLE_S, lost=True)
    assert latched(world_on_both) == {}


def test_a_gpu_that_answers_again_is_measured_against_what_it_said_before(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.counters["GPU-1"] = replace(WELL, ecc_volatile=3, ecc_aggregate=9)
    host.changed()
    assert latched(world_on_both) == {"ecc_uncorrected": 1}
    silent(host, unreadable_s=UNREADABLE_S // 2)
    host.gpus[0], host.counters["GPU-1"] = gpu(1), replace(WELL, ecc_volatile=3, ecc_aggregate=9, nvlinks_up=0)
    host.changed()
    assert latched(world_on_both) == {"ecc_uncorrected": 1, "nvlink_down": 1}


def test_another_organisations_gpu_of_the_same_uuid_is_not_fenced(world_on_both: World) -> None:
    world_on_both.add_machine("theirs", org="rival", gpu_count=0)
    Host(world_on_both).say(xid(79))
    with world_on_both.db.read() as tx:
        rows = tx.all(select(gpu_faults.c.org_id).distinct())
    assert [row["org_id"] for row in rows] == [world_on_both.ids.orgs["acme"]]


def test_a_fence_keeps_new_work_away_and_what_runs_goes_on(world_on_both: World) -> None:
    host = Host(world_on_both)
    create(world_on_both, Creation("dev", gpus=1))
    before = workload(world_on_both, "dev")["state"], allocation(world_on_both, "dev")["stop_asked_at"]
    host.say(xid(79, 1), xid(79, 2))
    assert (workload(world_on_both, "dev")["state"], allocation(world_on_both, "dev")["stop_asked_at"]) == before
    assert code_of(world_on_both, Creation("other", gpus=1)) == "NO_CAPACITY"


def test_hostile_evidence_is_bounded_and_does_no_harm(world_on_both: World) -> None:
    host = Host(world_on_both)
    host.say(*(xid(n, 1) for n in range(400)), "\x00" * 900, "NVRM: Xid (PCI:0000:01:00): 79" + "\ud800" * 600)
    assert sum(latched(world_on_both).values()) >= 20
    assert len(latched(world_on_both)) <= 20, "one latch a cause"
    host.counts("GPU-1", ecc_volatile=2**53, ecc_aggregate=2**53, nvlinks=2**31 - 1, recovery_action=2**53)
    events = told(world_on_both, "cluster.node.gpu_event", "cluster.node.quieted")
    assert len(events) <= 21, "the journal limits what a machine causes"
    assert host.report([(2**53, xid(79))]) == 2**53


def test_no_word_of_a_removed_machine_latches(world_on_both: World) -> None:
    host = Host(world_on_both)
    with world_on_both.db.write() as tx:
        machines.save(tx, host.ref, {"removed_at": tx.now})
    with pytest.raises(Refusal) as refused:
        host.say(xid(79))
    assert refused.value.code == "MACHINE_REMOVED"
    assert latched(world_on_both) == {}
