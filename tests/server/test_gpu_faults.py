"""GPUs' faults over a machine's session and the API (spec 10, "GPU faults"): a real server, an agent word by word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from corral.protocol.gpu_faults import ClearFault, FaultCleared, GpuHealth, KernelLine
from corral.protocol.messages import Gpu, Inventory
from corral.server import clearing
from corral.store.engine import Database
from tests.live_server import Site, eventually, live_server
from tests.scripted_agent import Enrolled, Speaker, enrol, session
from tests.world import World

UUID = "GPU-1"
LINE = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
HEALTH = GpuHealth(UUID, ecc_volatile=0, ecc_aggregate=0, nvlinks=18, nvlinks_up=18, recovery_action=0)
INVENTORY = Inventory(
    "host-1",
    gpu_probe="ok",
    gpus=(Gpu("nvidia", UUID, "0000:01:00.0", "H100"), Gpu("nvidia", "GPU-2", "0000:02:00.0", "H100")),
    gpu_health=(HEALTH,),
)


@dataclass
class Running:
    site: Site
    world: World
    machine: Enrolled

    def ask(self, method: str, path: str, who: str = "admin") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.world.tokens[who]}"}
        url = f"{self.site.url}/api/v1/orgs/acme/clusters/default{path}"
        with httpx.Client(timeout=30) as client:
            return client.request(method, url, headers=headers)

    def clear(self, uuid: str = UUID, query: str = "", who: str = "admin") -> httpx.Response:
        return self.ask("POST", f"/nodes/m/gpus/{uuid}/clear-fault{query}", who)

    def faults(self, query: str = "") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ask("GET", f"/gpu-faults{query}").json()["items"]
        return items

    @contextmanager
    def clearing(self) -> Iterator[list[httpx.Response]]:
        """Clear in a thread while the block runs; the answer is in the list afterwards."""
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(self.clear()))
        thread.start()
        try:
            yield answers
        finally:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def running(db: Database, tmp_path: Path) -> Iterator[Running]:
    world = World(db, tmp_path / "world", app=FastAPI())
    (machine,) = enrol(db, (world.ids.orgs["acme"], world.ids.clusters["default"]), "m")
    with live_server(db) as site:
        yield Running(site, world, machine)


def introduce(speaker: Speaker) -> None:
    speaker.report(inventory=INVENTORY)


def acknowledge(speaker: Speaker, seq: int = 1, **answer: Any) -> ClearFault:
    """Answer the next ask as an agent does."""
    asked = speaker.next(ClearFault)
    given: dict[str, Any] = {"boot_id": "b", "kernel_seq": seq, "health": HEALTH, **answer}
    speaker.say("fault_cleared", FaultCleared(asked.ask, **given))
    return asked


def lines(*numbers: int, text: str = LINE) -> dict[str, Any]:
    return {"kernel_lines": tuple(KernelLine(number, text) for number in numbers)}


def test_a_fault_is_reported_fenced_shown_and_cleared_over_the_session(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        assert speaker.report(**lines(7)).kernel_seen == 7
        (fault,) = running.faults()
        assert (fault["machine"], fault["gpu"], fault["code"], fault["state"]) == ("m", UUID, "xid_79", "open")
        assert (fault["meaning"], fault["evidence"], fault["count"]) == ("fallen off the bus", LINE, 1)
        shown = running.ask("GET", "/nodes/m").json()
        assert [[one["code"] for one in gpu["faults"]] for gpu in shown["gpus"]] == [["xid_79"], []]
        assert shown["machine"]["gpus"]["healthy"] == shown["machine"]["gpus"]["free"] == 1
        with running.clearing() as answers:
            asked = acknowledge(speaker, 7)
        assert (asked.vendor, asked.uuid) == ("nvidia", UUID)
        assert answers[0].status_code == 200, answers[0].text
        assert [one["code"] for one in answers[0].json()["cleared"]] == ["xid_79"]
        assert running.faults() == []
        assert running.faults("?state=cleared")[0]["cleared_by"] == "admin"
        assert running.ask("GET", "/nodes/m").json()["machine"]["gpus"]["free"] == 2
        speaker.report(**lines(7))
        assert running.faults() == []
        speaker.report(**lines(8))
        assert [one["code"] for one in running.faults()] == ["xid_79"]


def test_a_machine_that_is_not_connected_clears_nothing(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
    eventually(lambda: not running.site.hub.connected(running.machine.ref.id))
    answer = running.clear()
    assert (answer.status_code, answer.json()["code"]) == (409, "NODE_NOT_CONNECTED")
    assert len(running.faults()) == 1


def test_a_machine_that_leaves_before_it_answers_clears_nothing(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        with running.clearing() as answers:
            speaker.next(ClearFault)
            speaker.ws.close()
    assert (answers[0].status_code, answers[0].json()["code"]) == (409, "NODE_NOT_CONNECTED")
    assert "no open session" in answers[0].json()["message"], "nobody waited for it to answer"
    assert len(running.faults()) == 1


def test_a_machine_that_does_not_answer_is_not_waited_for_long(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "WITHIN_S", 0.2)
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        answer = running.clear()
        assert (answer.status_code, answer.json()["code"]) == (409, "NODE_NOT_CONNECTED")
        asked = acknowledge(speaker)  # too late, and so it says nothing
        assert asked.uuid == UUID
        speaker.report()
        assert len(running.faults()) == 1


def test_only_the_session_that_was_asked_may_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearing, "WITHIN_S", 1.0)
    (other,) = enrol(running.world.db, (running.world.ids.orgs["acme"], running.world.ids.clusters["default"]), "other")
    with session(running.site, running.machine) as speaker, session(running.site, other) as liar:
        introduce(speaker)
        speaker.report(**lines(1))
        with running.clearing() as answers:
            asked = speaker.next(ClearFault)
            liar.say("fault_cleared", FaultCleared(asked.ask, "b", 1, HEALTH))
            liar.report()
    assert answers[0].json()["code"] == "NODE_NOT_CONNECTED"
    assert len(running.faults()) == 1


def test_while_a_machine_is_waited_for_others_are_served_and_may_write(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        with running.clearing() as answers:
            asked = speaker.next(ClearFault)
            assert running.ask("POST", "/nodes/m/cordon").status_code == 200
            assert speaker.report(**lines(2, text=LINE.replace("79", "48"))).kernel_seen == 2
            speaker.say("fault_cleared", FaultCleared(asked.ask, "b", 2, HEALTH))
        assert answers[0].status_code == 200
        assert running.faults() == []


def test_a_fault_that_comes_while_another_is_cleared_fences(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        with running.clearing() as answers:
            acknowledge(speaker, 2)  # its kernel said line 2 already, which the site has not heard
        assert answers[0].status_code == 200
        speaker.report(**lines(2))
        assert [one["code"] for one in running.faults()] == ["xid_79"]


def test_a_control_plane_that_dies_between_answer_and_commit_leaves_the_fault(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise SystemError("killed")

    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        with monkeypatch.context() as patch:
            patch.setattr("corral.usecases.faults.rows.clear", dies)
            with running.clearing() as answers:
                acknowledge(speaker)
            assert answers[0].status_code == 500
        assert len(running.faults()) == 1
        assert running.ask("GET", "/nodes/m").json()["machine"]["gpus"]["free"] == 1
        with running.clearing() as answers:
            acknowledge(speaker)
        assert answers[0].status_code == 200


def test_a_dry_run_and_a_gpu_without_fault_ask_no_machine(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        healthy = running.clear("GPU-2").json()
        assert (healthy["cleared"], healthy["still"], healthy["dry_run"]) == ([], [], False)
        speaker.report(**lines(1))
        told = running.clear(query="?dry_run=true").json()
        assert ([one["code"] for one in told["cleared"]], told["dry_run"]) == (["xid_79"], True)
        assert len(running.faults()) == 1
        assert not [message for message in speaker.inbox if isinstance(message, ClearFault)]


def test_an_unknown_gpu_and_a_foreign_one_are_not_found(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        for uuid in ("GPU-9", "GPU-%00", "x" * 500):
            answer = running.clear(uuid)
            assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), answer.text
        assert running.clear(who="rival").status_code == 404
        assert running.clear(who="member").status_code == 403
        assert len(running.faults()) == 1


def test_a_report_that_says_nothing_new_of_its_gpus_touches_no_database(running: Running) -> None:
    batches = running.site.app.state.batches
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        before = batches.submitted
        for n in range(2, 12):
            assert speaker.report(**lines(*range(2, n + 1))).kernel_seen == 1, "said again: it waits, and is not lost"
        assert batches.submitted == before
        other = KernelLine(12, LINE.replace("79", "48"))
        waiting = tuple(KernelLine(n, LINE) for n in range(2, 12))
        assert speaker.report(kernel_lines=(*waiting, other)).kernel_seen == 12
        assert {one["code"]: one["count"] for one in running.faults()} == {"xid_79": 11, "xid_48": 1}


def test_an_answer_that_nobody_asked_for_makes_nothing_due(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1))
        speaker.say("fault_cleared", FaultCleared("nobody asked", "b", 1, HEALTH))
        assert speaker.report(**lines(2)).kernel_seen == 1
        with running.clearing():
            acknowledge(speaker, 2)
        assert speaker.report(**lines(2)).kernel_seen == 2
        assert len(running.faults()) == 1


def test_a_machine_that_cannot_read_its_log_clears_what_was_judged(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(7))
        with running.clearing() as answers:
            acknowledge(speaker, -1)
        assert [one["code"] for one in answers[0].json()["cleared"]] == ["xid_79"]
        assert running.faults() == []


def test_a_gpu_that_does_not_answer_for_a_minute_is_fenced(running: Running) -> None:
    silent = replace(INVENTORY, gpu_health=(GpuHealth(UUID, unreadable_s=60), GpuHealth("GPU-2", lost=True)))
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(inventory=silent, inventory_digest="another")
        assert {fault["gpu"]: fault["code"] for fault in running.faults()} == dict.fromkeys(
            (UUID, "GPU-2"), "unreadable"
        )


def test_a_restart_of_everything_latches_nothing_anew(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        speaker.report(**lines(1, 2))
        with running.clearing():
            acknowledge(speaker, 2)
    with session(running.site, running.machine, "another agent process") as speaker:
        speaker.report(inventory=INVENTORY, **lines(1, 2))
        assert running.faults() == []
        assert speaker.report(**lines(3)).kernel_seen == 3
        assert len(running.faults()) == 1


def test_hostile_evidence_ends_no_more_than_its_own_session(running: Running) -> None:
    with session(running.site, running.machine) as speaker:
        introduce(speaker)
        odd = (KernelLine(-5, LINE), KernelLine(2**62, "x"), KernelLine(3, "NVRM: Xid (" * 2_000))
        speaker.report(kernel_lines=odd)
        speaker.report(kernel_lines=tuple(KernelLine(n, LINE) for n in range(4, 2_000)))
        assert running.faults()[0]["count"] <= 256
        speaker.say("fault_cleared", FaultCleared("nobody asked", "b", 2**62, replace(HEALTH, ecc_volatile=2**62)))
        speaker.report()
        speaker.say("fault_cleared", {"ask": 5})
        assert speaker.closed()[0] == 4400
