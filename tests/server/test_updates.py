"""The doors of updating agents: what is answered when, previews, pages, the journal (spec 10, "Update agents")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from corral.protocol import messages as wire
from corral.protocol import updates as wire_updates
from corral.server.artefact import Artefact
from corral.store.engine import Database
from corral.store.tables.machines import machines
from tests import scripted_agent
from tests.live_server import Site, eventually, live_server
from tests.releases import Serves
from tests.world import World

SERVED = "9.9.9"
SUM = "ab" * 32
NODES = "/api/v1/orgs/acme/clusters/default/nodes"
ALL = "/api/v1/orgs/acme/clusters/default/update-agents"


@pytest.fixture
def served(tmp_path: Path) -> Serves:
    pyz = tmp_path / "corral-agent.pyz"
    pyz.write_bytes(b"a release")
    return Serves(Artefact(pyz, tmp_path / "SHA256SUMS", SUM, pyz.stat().st_size), SERVED)


@pytest.fixture
def behind(world: World, served: Serves) -> World:
    """The site serves another release than its machines m0 to m2 have."""
    world.app.state.artefact = served
    for n in range(3):
        world.add_machine(f"m{n}")
    put(world, release="1.0")
    return world


def put(world: World, **values: Any) -> None:
    with world.db.write() as tx:
        tx.run(update(machines).values(**values))


def test_a_machines_release_and_whether_it_is_behind_stand_in_the_list_and_on_its_page(behind: World) -> None:
    admin = behind.client("admin")
    for shown in (admin.get(NODES).json()["items"][0], admin.get(f"{NODES}/m0").json()["machine"]):
        assert (shown["release"], shown["behind"], shown["update"]) == ("1.0", True, None)
    put(behind, release=SERVED)
    assert not admin.get(f"{NODES}/m0").json()["machine"]["behind"]


def test_an_update_is_accepted_shown_and_asked_once(behind: World) -> None:
    admin = behind.client("admin")
    for _ in range(2):
        answer = admin.post(f"{NODES}/m0/update")
        assert answer.status_code == 202, answer.text
        going = answer.json()["update"]
        assert (going["release"], going["state"], going["message"]) == (SERVED, "asked", "")
    assert admin.get(NODES).json()["items"][0]["update"]["state"] == "asked"
    for view in ("events", "audit"):
        found = admin.get(f"/api/v1/orgs/acme/{view}?type=cluster.node.upgrade").json()["items"]
        assert [entry["data"]["state"] for entry in found] == ["asked"]
        assert found[0]["actor"] == "admin"


def test_a_machine_of_the_sites_release_answers_200_and_nothing_changes(behind: World) -> None:
    put(behind, release=SERVED)
    answer = behind.client("admin").post(f"{NODES}/m0/update")
    assert (answer.status_code, answer.json()["update"], answer.json()["behind"]) == (200, None, False)
    assert behind.client("admin").get("/api/v1/orgs/acme/audit?type=cluster.node.upgrade").json()["items"] == []


def test_a_preview_of_one_says_what_goes_on_and_that_nothing_stops(behind: World) -> None:
    behind.add_workload("dev", "m0")
    told = behind.client("admin").post(f"{NODES}/m0/update?dry_run=true")
    assert told.status_code == 200
    body = told.json()
    assert (body["before"], body["after"], body["stops"], body["dry_run"]) == ("1.0", SERVED, [], True)
    assert [work["name"] for work in body["running"]] == ["dev"]
    assert behind.client("admin").get(f"{NODES}/m0").json()["machine"]["update"] is None


def test_an_update_of_all_is_previewed_started_shown_in_pages_and_stopped(behind: World) -> None:
    admin = behind.client("admin")
    assert admin.get(ALL).status_code == 404
    planned = admin.post(f"{ALL}?dry_run=true").json()
    assert [(one["name"], one["stage"], one["state"]) for one in planned["machines"]] == [
        ("m0", 0, "waiting"),
        ("m1", 1, "waiting"),
        ("m2", 2, "waiting"),
    ]
    assert (planned["id"], planned["dry_run"]) == (None, True)
    begun = admin.post(ALL)
    assert begun.status_code == 202
    assert (begun.json()["state"], begun.json()["by"], begun.json()["release"]) == ("running", "admin", SERVED)
    again = admin.post(ALL)
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    assert admin.post(f"{ALL}?dry_run=true").status_code == 200
    assert pages(behind) == ["m0", "m1", "m2"]
    assert admin.delete(f"{ALL}?dry_run=true").json()["state"] == "running"
    stopped = admin.delete(ALL).json()
    assert (stopped["state"], stopped["message"]) == ("stopped", "stopped by admin")
    assert [stage["left_out"] for stage in stopped["stages"]] == [1, 1, 1]
    assert admin.get(ALL).json()["ended_at"] is not None


def pages(world: World) -> list[str]:
    names, token = [], None
    while True:
        params = {"page_size": 2, **({"page_token": token} if token else {})}
        page = world.client("admin").get(ALL, params=params).json()
        names += [one["name"] for one in page["machines"]]
        token = page["next_page_token"]
        if not token:
            return names


@pytest.mark.parametrize("token", ["eA", "My9t", "OS9t", "L20"])
def test_a_page_token_of_another_list_is_refused(behind: World, token: str) -> None:
    behind.client("admin").post(ALL)
    answer = behind.client("admin").get(f"{ALL}?page_token={token}")
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_the_same_idempotency_key_starts_one_update(behind: World) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = (behind.client("admin").post(ALL, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert second.status_code == 202


def test_where_nobody_is_behind_it_says_so(behind: World) -> None:
    put(behind, release=SERVED)
    told = behind.client("admin").post(ALL).json()
    assert (told["id"], told["state"]) == (None, "done")
    assert "nothing was asked" in told["message"]


# -- on the machine's session -----------------------------------------------------------------------


@pytest.fixture
def site(sqlite_db: Database, served: Serves, world: World) -> Any:
    with live_server(sqlite_db, artefact=served) as running:
        world.app.state.artefact = served  # people ask beside it, on the same database
        yield running


def test_each_session_is_told_until_the_machine_has_answered(site: Site, world: World, served: Serves) -> None:
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    machine = scripted_agent.enrol(site.db, where, "m")[0]
    admin = world.client("admin")
    wanted = wire_updates.Update(1, SERVED, SUM, len(b"a release"), "/api/v1/agent/artefact")
    with scripted_agent.session(site, machine, "a") as speaker:
        speaker.report()
        assert admin.post(f"{NODES}/m/update").status_code == 202
        assert speaker.next(wire_updates.Update) == wanted
    with scripted_agent.session(site, machine, "b") as speaker:
        speaker.report(update=wire_updates.UpdateReport(1, wire_updates.UpdateState.RUNNING, "downloads"))
        assert speaker.next(wire_updates.Update) == wanted
        shown = admin.get(f"{NODES}/m").json()["machine"]["update"]
        assert (shown["state"], shown["message"]) == ("running", "downloads")
    with scripted_agent.session(site, machine, "c") as speaker:
        speaker.report(update=wire_updates.UpdateReport(1, wire_updates.UpdateState.FAILED, "no \0room" + "x" * 1000))
        speaker.next(wire.Desired)
        assert admin.get(f"{NODES}/m").json()["machine"]["update"]["message"].startswith("no room")
        assert not any(isinstance(message, wire_updates.Update) for message in speaker.inbox)
        assert admin.post(f"{NODES}/m/update").status_code == 202
        assert speaker.next(wire_updates.Update).ask == 2
    with scripted_agent.session(site, machine, "d", release=SERVED) as speaker:
        speaker.report(release=SERVED)
        eventually(lambda: admin.get(f"{NODES}/m").json()["machine"]["update"] is None)


def test_a_report_that_differs_only_in_what_the_update_does_is_taken_in(site: Site, world: World) -> None:
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    machine = scripted_agent.enrol(site.db, where, "m")[0]
    with scripted_agent.session(site, machine, "a") as speaker:
        speaker.report()
        world.client("admin").post(f"{NODES}/m/update")
        speaker.next(wire_updates.Update)
        for doing in ("downloads", "tests itself", "waits to be downloaded: HTTP 429"):
            speaker.report(update=wire_updates.UpdateReport(1, wire_updates.UpdateState.RUNNING, doing))
            assert world.client("admin").get(f"{NODES}/m").json()["machine"]["update"]["message"] == doing


def test_an_agent_that_knows_no_updates_goes_on_and_stays_asked(site: Site, world: World) -> None:
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    machine = scripted_agent.enrol(site.db, where, "m")[0]
    with scripted_agent.session(site, machine, "a") as speaker:
        speaker.report()
        world.client("admin").post(f"{NODES}/m/update")
        speaker.next(wire_updates.Update)
        assert speaker.report(cpu_percent=1.0).seq == speaker.seq
        assert world.client("admin").get(f"{NODES}/m").json()["machine"]["update"]["state"] == "asked"


@pytest.mark.parametrize("ask", [-1, 2**70])
def test_a_hostile_number_of_an_ask_changes_nothing(site: Site, world: World, ask: int) -> None:
    where = (world.ids.orgs["acme"], world.ids.clusters["default"])
    machine = scripted_agent.enrol(site.db, where, "m")[0]
    with scripted_agent.session(site, machine, "a") as speaker:
        speaker.say_report(update=wire_updates.UpdateReport(ask, wire_updates.UpdateState.FAILED, "x"))
    assert world.client("admin").get(f"{NODES}/m").json()["machine"]["update"] is None
