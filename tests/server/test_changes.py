"""Every route that changes something, asked so that it does: exactly one audit entry (spec 60, line 7).

What the operator does to an organisation stands in its audit and in the site's. What is mistyped changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from corral.controllers.placement import PlacementWorker
from corral.domain.data_location import Asked as LocationAsked
from corral.domain.machines import Quarantine
from corral.domain.permissions import Role
from corral.domain.quotas import Quota
from corral.store.tables import metadata
from corral.store.tables.machines import machines
from corral.store.tables.users import users
from corral.usecases import (
    access,
    break_glass,
    clusters,
    compute_clusters,
    data_location,
    orgs,
    passwords,
    staged_updates,
    webhooks,
)
from corral.usecases import machines as machine_use
from tests.server.walk import CALLERS, CLUSTER, NODE, ONE, ORG, TABLE, WS, Forgetful, Line, Walk, walking
from tests.world import World, public_key

WRITING = [line for line in TABLE if line.method in ("POST", "PUT", "PATCH", "DELETE")]
PEOPLES = [line for line in WRITING if not line.path.startswith("/api/v1/agent/")]
CHANGES_NOTHING = {
    f"POST {WS}/placements/explain": "it answers a question",
    f"POST {NODE}/gpus/{{gpu}}/clear-fault": "the machine answers on its session: tests/server/test_gpu_faults.py",
}
OF_THE_SITE = {
    f"PUT {CLUSTER}/prices": "the hosted cluster's prices are those of every tenant",
}
ON_TENANTS = {
    "POST /api/v1/orgs",
    "DELETE /api/v1/site/clusters/{id}",
    "POST /api/v1/site/cluster-requests/{id}/answer",
}
"""What the operator does to an organisation that the path does not name."""
PASSWORD = "correct horse battery"


class Prepared:
    """The walk's world with one of each thing that can be changed, and how to ask for that change."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.world = walk, walk.world
        self.lines: dict[str, Line] = {}
        self.who: dict[str, str] = {}
        self._organisations()
        self._clusters()
        self._machines()
        self._people()
        self._rest()

    def change(self, method_and_path: str, body: Any = None, *, who: str = "", **names: str) -> None:
        (line,) = (one for one in TABLE if str(one) == method_and_path)
        named = {**line.names, **names}
        self.lines[method_and_path] = replace(line, body=line.body if body is None else body, names=named)
        if who:
            self.who[method_and_path] = who

    def ask(self, line: Line, query: str = "") -> tuple[int, dict[str, Any]]:
        line = self.lines.get(str(line), line)
        who = self.who.get(str(line), CALLERS[line.who.index("+")])
        return self.walk.ask(line, self.walk.url(line, who) + query, self.world.tokens[who])

    def _organisations(self) -> None:
        with self.world.act("operator") as ctx:
            orgs.create(ctx, "vacant", "Vacant", "")
            self.world.ids.orgs["spare"] = orgs.create(ctx, "spare", "Spare", "").id
        with self.world.act("operator", "vacant") as ctx:
            self.look = break_glass.begin(ctx, "to see", 3600).id
        self.world.add_member("owner", "spare", Role.OWNER)
        self.change(f"DELETE {ORG}", org="vacant")
        self.change(f"POST {ORG}/owner-invitations", org="vacant")
        self.change(f"DELETE {ORG}/break-glass/{{id}}", org="vacant", id=self.look)
        self.change(f"PATCH {ORG}", {"name": "Acme Limited"})
        self.change(f"PATCH {WS}", {"name": "Research and more"})
        self.change(f"DELETE {WS}", ws="private")
        self.change(f"POST {ORG}/hosted-cluster", org="spare")

    def _clusters(self) -> None:
        with self.world.act("operator", "acme") as ctx:
            clusters.create_dedicated(ctx, "unused", "Unused")
        with self.world.act("admin", "acme", "private") as ctx:
            access.put(ctx, "default", ["*"], Quota())
        self.change(f"DELETE {CLUSTER}", cluster="unused")
        self.change(f"POST {WS}/enrollment-tokens", {"cluster": "default"})
        self.change(f"PUT {WS}/access/{{cluster}}", {"pools": ["h100"]})
        self.change(f"DELETE {WS}/access/{{cluster}}", ws="private")

    def _machines(self) -> None:
        disks = [{"mount": "/mnt/nvme0", "device": "/dev/nvme0n1", "kind": "xfs", "size_mib": 9000, "free_mib": 5000}]
        self.world.add_machine("gpu-2")
        self.world.add_machine("gpu-3")
        with self.world.act("admin", "acme") as ctx:
            inventory = {"inventory": {"disks": [{**disk, "os": False} for disk in disks]}}
            ctx.tx.run(update(machines).where(machines.c.name != "gpu-1").values(release="0.0.1", **inventory))
            held = {"quarantine": Quarantine.CLONE.value, "quarantine_reason": "two copies"}
            ctx.tx.run(update(machines).where(machines.c.name == "gpu-2").values(**held))
            machine_use.cordon(ctx, "default", "gpu-2", "to see")
            data_location.choose(ctx, ("default", "gpu-2"), LocationAsked("/mnt/nvme0/corral", 0), {})
        self.change(f"POST {NODE}/uncordon", node="gpu-2")
        self.change(f"POST {NODE}/release-quarantine", node="gpu-2")
        self.change(f"DELETE {NODE}", node="gpu-3")
        self.change(f"PUT {NODE}/data-location", {"path": "/mnt/nvme0/corral"}, node="gpu-3")
        self.change(f"DELETE {NODE}/data-location", node="gpu-2")
        self.world.add_machine("theirs", "rival")
        with self.world.act("rival", "rival") as ctx:
            ctx.tx.run(update(machines).where(machines.c.name == "theirs").values(release="0.0.1"))
            staged_updates.start(ctx, "default", self.world.app.state.artefact.release)
        self.change(f"DELETE {CLUSTER}/update-agents", who="rival", org="rival")

    def _people(self) -> None:
        with self.world.db.write() as tx:
            known = {"password_hash": passwords.hashed(PASSWORD)}
            tx.run(update(users).where(users.c.login == "member").values(**known))
        with self.world.act("member", "acme", "research") as ctx:
            compute_clusters.attach(ctx, "dev", ["laptop"])
        self.change("POST /api/v1/login", {"login": "member", "password": PASSWORD})
        new = {"login": "ada", "name": "Ada", "password": PASSWORD}
        self.change("POST /api/v1/login/link", {"link": self.walk.link, **new})
        self.change("POST /api/v1/me/ssh-keys", {"public_key": public_key("desk"), "name": "desk"})
        self.change(f"PATCH {ORG}/members/{{user}}", {"role": "admin"})
        self.change(f"DELETE {ONE}/ssh-keys", who="member")

    def _rest(self) -> None:
        asked = webhooks.Asked("spare", "https://hooks.example.com/", ["cluster.*"])
        with self.world.act("admin", "acme") as ctx:
            spare = webhooks.create(ctx, self.world.app.state.seal, asked).row["id"]
        self.change(f"DELETE {ORG}/webhooks/{{id}}", id=spare)
        self.change(f"POST {ORG}/webhooks", {"name": "w", "url": "https://8.8.8.8/"})
        self.change(f"POST {ORG}/alert-rules", {"name": "told", "webhook": spare})


@pytest.fixture(scope="module")
def prepared(module_db_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with walking(module_db_url, tmp_path_factory.mktemp("changes")) as walk:
        walk.db.forgets = False
        made = Prepared(walk)
        walk.db.forgets = True
        yield made


def expected(line: Line) -> list[str]:
    """In whose audits an entry has to stand."""
    who = CALLERS[line.who.index("+")]
    if line.path.startswith(ORG) and str(line) not in OF_THE_SITE:
        return ["org", "site"] if who == "operator" else ["org"]
    return ["org", "site"] if str(line) in ON_TENANTS else ["org"] if line.path == "/api/v1/login/link" else ["site"]


@pytest.mark.parametrize("line", [line for line in PEOPLES if str(line) not in CHANGES_NOTHING], ids=str)
def test_every_change_leaves_exactly_one_entry_in_each_audit_it_is_of(prepared: Prepared, line: Line) -> None:
    written = prepared.walk.db.written
    written.clear()
    status, body = prepared.ask(line)
    assert status < 300, body
    mine = [row for row in written if row["request_id"] and row["audit"]]
    assert sorted("org" if row["org_id"] else "site" for row in mine) == expected(line), mine
    assert len({row["type"] for row in mine}) == 1


@pytest.fixture(scope="module")
def still(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """The same world, in which nothing goes on by itself: only what is asked for changes rows."""
    folder = tmp_path_factory.mktemp("still")
    shutil.copy(sqlite_template, folder / "corral.db")
    db = Forgetful(f"sqlite:///{folder / 'corral.db'}")
    world = World(db, folder)
    placer = world.app.state.placer = PlacementWorker(db)
    made = Prepared(Walk(world, db))
    asyncio.run(placer.start())
    try:
        yield made
    finally:
        asyncio.run(placer.stop())
        db.close()


@pytest.mark.parametrize("line", PEOPLES, ids=str)
def test_a_query_parameter_that_is_not_known_changes_nothing(still: Prepared, line: Line) -> None:
    before = rows_of(still)
    status, body = still.ask(line, "?nonsense=1")
    assert (status, body.get("code")) == (400, "INVALID_REQUEST"), body
    assert "nonsense" in body["message"]
    assert rows_of(still) == before


def rows_of(prepared: Prepared) -> dict[str, list[str]]:
    """Return all that is stored."""
    with prepared.world.db.read() as tx:
        return {table.name: sorted(map(str, tx.all(select(table)))) for table in metadata.sorted_tables}


@pytest.mark.parametrize("line", PEOPLES, ids=str)
def test_a_preview_leaves_no_entry(prepared: Prepared, line: Line) -> None:
    if not _has_preview(prepared, line):
        return
    written = prepared.walk.db.written
    written.clear()
    status, body = prepared.ask(line, "?dry_run=true")
    assert status < 300, body
    assert [row for row in written if row["request_id"]] == []


def _has_preview(prepared: Prepared, line: Line) -> bool:
    operation = prepared.world.app.openapi()["paths"][line.path][line.method.lower()]
    return any(one["name"] == "dry_run" for one in operation.get("parameters", ()))


def test_every_change_of_a_machine_has_a_preview(prepared: Prepared) -> None:
    """What begins nothing that a person could be surprised by needs none."""
    of_machines = [line for line in PEOPLES if line.path.startswith(NODE)]
    assert [str(line) for line in of_machines if not _has_preview(prepared, line)] == []
