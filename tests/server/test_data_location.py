"""A machine's data location over HTTP, and over its session (spec 10, "Data location")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from corral.protocol.data_location import DataLocation, DataLocationSeen, DataState
from corral.protocol.messages import Desired, Disk
from corral.store.engine import Database
from corral.store.tables.machines import machines
from tests import scripted_agent as scripted
from tests.live_server import Site, live_server
from tests.scripted_agent import INVENTORY, Speaker
from tests.world import World

NODE = "/api/v1/orgs/acme/clusters/default/nodes/m"
LOCATION = f"{NODE}/data-location"
PATH = "/mnt/nvme0/corral"
OS = Disk("/", "/dev/sda2", "ext4", 900, 500, os=True)
NVME = Disk("/mnt/nvme0", "/dev/nvme0n1", "xfs", 9000, 5000)
BOOT = Disk("/boot", "/dev/sda1", "ext4", 500, 300, os=True)


@pytest.fixture
def machine(world: World) -> World:
    world.add_machine("m")
    with world.db.write() as tx:
        tx.run(update(machines).values(inventory={"disks": [vars(disk) for disk in (OS, NVME, BOOT)]}))
    return world


def test_the_details_offer_disks_and_recommend_one(machine: World) -> None:
    told = machine.client("admin").get(NODE).json()
    assert [(disk["mount"], disk["os"], disk["recommended"]) for disk in told["disks"]] == [
        ("/", True, False),
        ("/mnt/nvme0", False, True),
    ]
    assert told["data_location"] is None


def test_it_is_chosen_and_forgotten(machine: World) -> None:
    admin = machine.client("admin")
    chosen = admin.put(LOCATION, json={"path": PATH, "max_bytes": 5})
    location = {"path": PATH, "mount": "/mnt/nvme0", "max_bytes": 5, "state": "making", "message": "", "copies": 0}
    assert (chosen.status_code, chosen.json()["data_location"]) == (200, location)
    assert admin.get(NODE).json()["data_location"] == location
    assert admin.delete(LOCATION).json()["data_location"] is None
    assert admin.get(NODE).json()["data_location"] is None


def test_a_dry_run_answers_what_would_be_and_changes_nothing(machine: World) -> None:
    admin = machine.client("admin")
    would = admin.put(LOCATION, json={"path": PATH}, params={"dry_run": "true"}).json()
    assert (would["dry_run"], would["data_location"]["mount"]) == (True, "/mnt/nvme0")
    assert admin.put(LOCATION, json={"path": "/etc/x"}, params={"dry_run": "true"}).status_code == 400
    assert admin.get(NODE).json()["data_location"] is None
    admin.put(LOCATION, json={"path": PATH})
    assert admin.delete(LOCATION, params={"dry_run": "true"}).json()["data_location"] is None
    assert admin.get(NODE).json()["data_location"]["path"] == PATH


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"path": "/etc/corral"}, "INVALID_PATH"),
        ({"path": "corral"}, "INVALID_PATH"),
        ({"path": f"{PATH}/../../x"}, "INVALID_PATH"),
        ({"path": PATH, "max_bytes": -1}, "INVALID_REQUEST"),
        ({"path": PATH, "max_bytes": 10**30}, "INVALID_REQUEST"),
        ({"path": PATH, "max_bytes": "5"}, "INVALID_REQUEST"),
        ({"path": PATH, "max_bytes": True}, "INVALID_REQUEST"),
        ({"path": PATH, "max_bytes": 1.5}, "INVALID_REQUEST"),
        ({"path": None}, "INVALID_REQUEST"),
        ({"path": PATH, "mount": "/"}, "INVALID_REQUEST"),
        ({}, "INVALID_REQUEST"),
    ],
)
def test_what_will_not_do_is_refused(body: dict[str, Any], code: str, machine: World) -> None:
    answer = machine.client("admin").put(LOCATION, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_while_copies_are_kept_it_is_not_forgotten(machine: World) -> None:
    machine.client("admin").put(LOCATION, json={"path": PATH})
    with machine.db.write() as tx:
        tx.run(update(machines).values(data_state="ready", data_copies=1))
    answer = machine.client("admin").delete(LOCATION)
    assert (answer.status_code, answer.json()["code"]) == (409, "DATA_LOCATION_IN_USE")


def test_only_the_organisations_admins_may(machine: World) -> None:
    for who, status in (("member", 403), ("operator", 403), ("rival", 404)):
        assert machine.client(who).put(LOCATION, json={"path": PATH}).status_code == status
        assert machine.client(who).delete(LOCATION).status_code == status
    assert machine.client("admin").put(f"{LOCATION[:-15]}x/data-location", json={"path": PATH}).status_code == 404


# -- over the session


@dataclass(frozen=True)
class Connected:
    """A machine's open session, and an admin's client."""

    site: Site
    speaker: Speaker
    admin: httpx2.Client


@pytest.fixture
def connected(db: Database, tmp_path: Path) -> Iterator[Connected]:
    world = World(db, tmp_path)
    (enrolled,) = scripted.enrol(db, (world.ids.orgs["acme"], world.ids.clusters["default"]), "m")
    with live_server(db) as site, scripted.session(site, enrolled) as speaker:
        speaker.report(inventory=replace(INVENTORY, disks=(OS, NVME)))
        assert speaker.next(Desired).data_location == DataLocation(0)
        with httpx2.Client(base_url=site.url, headers=world.client("admin").headers) as admin:
            yield Connected(site, speaker, admin)


def test_the_machine_is_told_and_its_word_is_shown(connected: Connected) -> None:
    speaker, admin = connected.speaker, connected.admin
    assert admin.put(LOCATION, json={"path": PATH, "max_bytes": 7}).status_code == 200
    assert speaker.next(Desired).data_location == DataLocation(1, PATH, "/mnt/nvme0", 7)
    for state, message in ((DataState.FAILED, "the disk is full"), (DataState.READY, "")):
        speaker.report(data_location=DataLocationSeen(1, state, message, copies=2))
        told = admin.get(NODE).json()["data_location"]
        assert (told["state"], told["message"], told["copies"]) == (state.value, message, 2)
    speaker.report(data_location=DataLocationSeen(1, DataState.READY, "", copies=0))
    assert admin.delete(LOCATION).status_code == 200
    assert speaker.next(Desired).data_location == DataLocation(2)


def test_the_same_word_again_costs_no_database(connected: Connected) -> None:
    speaker, admin = connected.speaker, connected.admin
    admin.put(LOCATION, json={"path": PATH})
    speaker.next(Desired)
    seen = DataLocationSeen(1, DataState.READY)
    speaker.report(data_location=seen)
    speaker.report(data_location=seen)
    before = connected.site.app.state.batches.submitted
    speaker.report(data_location=seen, disk_free_mib={"/": 3})
    assert connected.site.app.state.batches.submitted == before


def test_what_is_free_now_is_shown_and_recommends(connected: Connected) -> None:
    speaker, admin = connected.speaker, connected.admin
    speaker.report(disk_free_mib={"/": 400, "/mnt/nvme0": 10, "/elsewhere": -5})
    free = {disk["mount"]: disk["free_mib"] for disk in admin.get(NODE).json()["disks"]}
    assert free == {"/": 400, "/mnt/nvme0": 10}


@pytest.mark.parametrize("generation", [-1, 10**18])
def test_a_word_of_no_choice_of_this_sites_says_nothing(generation: int, connected: Connected) -> None:
    speaker, admin = connected.speaker, connected.admin
    admin.put(LOCATION, json={"path": PATH})
    speaker.report(data_location=DataLocationSeen(generation, DataState.READY, "\0" * 500, copies=10**18))
    assert admin.get(NODE).json()["data_location"]["state"] == "making"
