"""A small world for tests: an app on a database with two organisations, their people and what they have.

`acme`: people `owner`, `admin`, `lead` and `member` (of workspace `research`), `outsider` (in no workspace);
workspaces `research` (access to every machine of cluster `default`) and `private`. `rival`: `rival` owns it and its
workspace `research`. `operator` runs the site. Rows are made directly, so a broken use case breaks its own test only.

    def test_something(world: World) -> None:
        assert world.client("owner").get("/api/v1/orgs/acme").status_code == 200
        with world.act("admin", org="acme") as ctx:
            usecase(ctx, ...)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from fastapi import FastAPI
from httpx2 import Response
from sqlalchemy import insert
from starlette.testclient import TestClient, WebSocketTestSession

from corral.domain import secrets
from corral.domain.permissions import Role, Rule, Who
from corral.server.app import create_app
from corral.server.config import Config
from corral.store import fleet
from corral.store.engine import Database
from corral.store.tables.access import access, access_pools
from corral.store.tables.clusters import clusters, tenancies
from corral.store.tables.machines import gpus, liveness, machines
from corral.store.tables.orgs import members, orgs, workspace_members, workspaces
from corral.store.tables.site import sites
from corral.store.tables.users import api_tokens, users
from corral.store.tables.workloads import allocations, gpu_holds, workloads
from corral.store.transaction import Scope, Tx
from corral.usecases.context import Context, new_id
from corral.usecases.identity import Caller, Place, enter

PEOPLE = {
    "operator": None,
    "owner": ("acme", Role.OWNER),
    "admin": ("acme", Role.ADMIN),
    "lead": ("acme", Role.MEMBER),
    "member": ("acme", Role.MEMBER),
    "outsider": ("acme", Role.MEMBER),
    "rival": ("rival", Role.OWNER),
}


@dataclass
class Ids:
    """Ids of what the world has, by name; workspaces as `acme/research`."""

    users: dict[str, str] = field(default_factory=dict)
    orgs: dict[str, str] = field(default_factory=dict)
    workspaces: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, str] = field(default_factory=dict)
    allocations: dict[str, str] = field(default_factory=dict)


class Client:
    """What one person (or nobody) sends; every method returns the response."""

    def __init__(self, http: TestClient, token: str | None) -> None:
        self._http = http
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(self, method: str, path: str, **kwargs: Any) -> Response:
        headers = {**self.headers, **kwargs.pop("headers", {})}
        return self._http.request(method, path, headers=headers, **kwargs)

    def get(self, path: str, **kwargs: Any) -> Response:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, **kwargs: Any) -> Response:
        return self.request("POST", path, **kwargs)

    def put(self, path: str, **kwargs: Any) -> Response:
        return self.request("PUT", path, **kwargs)

    def patch(self, path: str, **kwargs: Any) -> Response:
        return self.request("PATCH", path, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Response:
        return self.request("DELETE", path, **kwargs)

    def websocket(self, path: str, **kwargs: Any) -> WebSocketTestSession:
        """Open a WebSocket; a refusal raises `starlette.testclient.WebSocketDenialResponse`."""
        headers = {**self.headers, **kwargs.pop("headers", {})}
        return self._http.websocket_connect(path, headers=headers, **kwargs)


class World:
    """See the module. `ids` names what exists, `tokens` each person's API token with every scope."""

    def __init__(self, db: Database, state_dir: Path, *, app: FastAPI | None = None) -> None:
        self.db = db
        self.ids = Ids()
        self.tokens: dict[str, str] = {}
        with db.write() as tx:
            self._populate(tx)
        self.config = Config(database=str(db.url), state_dir=state_dir, public_url="http://corral.test")
        self.app = app or create_app(self.config, db)
        self.http = TestClient(self.app, base_url="http://corral.test", raise_server_exceptions=False)

    def client(self, who: str | None = None, *, token: str | None = None) -> Client:
        """Return a client of a person of `PEOPLE`, of a token, or of nobody."""
        return Client(self.http, self.tokens[who] if who else token)

    @contextmanager
    def running(self) -> Iterator[World]:
        """Run the app's own parts (its lifespan) meanwhile."""
        with self.http:
            yield self

    @contextmanager
    def act(self, who: str, org: str | None = None, workspace: str | None = None) -> Iterator[Context]:
        """Yield a person's context in a write transaction, for tests of use cases."""
        anyone = Rule(Who.SELF, "all")
        with self.db.write() as tx:
            yield enter(tx, Caller(self.tokens[who], "192.0.2.1"), anyone, Place(org, workspace))

    def token(self, who: str, scopes: Sequence[str], *, name: str = "test") -> str:
        """Make and return another API token of a person."""
        with self.db.write() as tx:
            return _add_token(tx, self.ids.users[who], scopes, name)

    def add_user(self, login: str, *, operator: bool = False) -> str:
        """Make a person of no organisation; returns their id. `tokens` has their token."""
        with self.db.write() as tx:
            self._add_user(tx, login, operator=operator)
        return self.ids.users[login]

    def add_member(self, login: str, org: str = "acme", role: Role = Role.MEMBER) -> str:
        """Make a person who is a member; returns their id."""
        if login not in self.ids.users:
            self.add_user(login)
        with self.db.write() as tx:
            self._add_member(tx, login, org, role)
        return self.ids.users[login]

    def add_machine(
        self, name: str, org: str = "acme", *, gpu_count: int = 2, pool: str = "", state: str = "up"
    ) -> str:
        """Make a machine of cluster `default` with 16 vCPU, 64 GiB and 1 TiB; returns its id."""
        with self.db.write() as tx:
            id = self.ids.machines[name] = new_id(tx.now)
            row = {"id": id, "org_id": self.ids.orgs[org], "cluster_id": self.ids.clusters["default"], "name": name}
            tx.run(insert(machines).values(**row, **_machine_row(tx, pool, state)))
            tx.run(insert(liveness).values(machine_id=id, last_seen=tx.now))
            for slot in range(gpu_count):
                tx.run(insert(gpus).values(**_gpu_row(tx, row, slot)))
            fleet.touch(tx, Scope(row["org_id"]), row["cluster_id"], [id])
        return id

    def add_workload(self, name: str, machine: str, *, by: str = "member", gpu_count: int = 0) -> str:
        """Make an Active compute cluster of acme's `research` on a machine; returns its id."""
        with self.db.write() as tx:
            id = self.ids.workloads[name] = new_id(tx.now)
            place = {
                "org_id": self.ids.orgs["acme"],
                "workspace_id": self.ids.workspaces["acme/research"],
                "cluster_id": self.ids.clusters["default"],
            }
            ask = {"gpus": gpu_count, "vcpu": 1, "ram_mib": 1024, "storage_mib": 1024}
            asked = {**ask, "machine": None, "pool": None, "gpu_model": None}
            row = {"id": id, **place, "name": name, "created_by": self.ids.users[by], "ask": asked}
            tx.run(insert(workloads).values(**row, **_workload_row(tx)))
            held = self.ids.allocations[name] = new_id(tx.now)
            machine_id = self.ids.machines[machine]
            model = "H100" if gpu_count else ""
            held_row = {"id": held, **place, "machine_id": machine_id, "workload_id": id, "gpu_model": model, **ask}
            tx.run(
                insert(allocations).values(
                    **held_row, placed_at=tx.now, ran_at=tx.now, seen_state="running", seen_gpus=[]
                )
            )
            self._hold(tx, held, machine_id, gpu_count)
        return id

    def _hold(self, tx: Tx, allocation_id: str, machine_id: str, count: int) -> None:
        free = gpus.select().where(gpus.c.machine_id == machine_id).order_by(gpus.c.slot).limit(count)
        for gpu in tx.all(free) if count else ():
            hold = {"allocation_id": allocation_id, "gpu_id": gpu["id"], "org_id": gpu["org_id"]}
            tx.run(insert(gpu_holds).values(**hold, machine_id=machine_id))

    def _populate(self, tx: Tx) -> None:
        tx.run(insert(sites).values(id=1, incarnation=new_id(tx.now), hosted_machine_limit=10, created_at=tx.now))
        for slug in ("acme", "rival"):
            id = self.ids.orgs[slug] = new_id(tx.now)
            tx.run(insert(orgs).values(id=id, slug=slug, name=slug.title(), created_at=tx.now))
        for login, place in PEOPLE.items():
            self._add_user(tx, login, operator=place is None)
            if place is not None:
                self._add_member(tx, login, *place)
        for org, slug in (("acme", "research"), ("acme", "private"), ("rival", "research")):
            self._add_workspace(tx, org, slug)
        self._add_to_workspace(tx, "lead", "lead")
        self._add_to_workspace(tx, "member", "member")
        self._add_hosted_cluster(tx)

    def _add_user(self, tx: Tx, login: str, *, operator: bool) -> None:
        id = self.ids.users[login] = new_id(tx.now)
        tx.run(insert(users).values(id=id, login=login, name=login.title(), operator=operator, created_at=tx.now))
        self.tokens[login] = _add_token(tx, id, ["all"], "login")

    def _add_member(self, tx: Tx, login: str, org: str, role: Role) -> None:
        row = {"org_id": self.ids.orgs[org], "user_id": self.ids.users[login], "role": role.value}
        tx.run(insert(members).values(**row, joined_at=tx.now))

    def _add_workspace(self, tx: Tx, org: str, slug: str) -> None:
        id = self.ids.workspaces[f"{org}/{slug}"] = new_id(tx.now)
        row = {"id": id, "org_id": self.ids.orgs[org], "slug": slug, "name": slug.title()}
        tx.run(insert(workspaces).values(**row, created_at=tx.now))

    def _add_to_workspace(self, tx: Tx, login: str, part: str) -> None:
        row = {"org_id": self.ids.orgs["acme"], "workspace_id": self.ids.workspaces["acme/research"]}
        tx.run(insert(workspace_members).values(**row, user_id=self.ids.users[login], part=part, since=tx.now))

    def _add_hosted_cluster(self, tx: Tx) -> None:
        id = self.ids.clusters["default"] = new_id(tx.now)
        tx.run(insert(clusters).values(id=id, hosted=True, created_at=tx.now))
        for org in ("acme", "rival"):
            row = {"cluster_id": id, "org_id": self.ids.orgs[org], "slug": "default", "name": "Hosted"}
            tx.run(insert(tenancies).values(**row, joined_at=tx.now))
            granted = {"workspace_id": self.ids.workspaces[f"{org}/research"], "cluster_id": id}
            tx.run(insert(access).values(**granted, org_id=self.ids.orgs[org], changed_at=tx.now))
            tx.run(insert(access_pools).values(**granted, pool="*"))


def public_key(comment: str = "") -> str:
    """Return the line of a new SSH public key."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    return f"{line} {comment}".strip()


def _add_token(tx: Tx, user_id: str, scopes: Sequence[str], name: str) -> str:
    secret = secrets.make(secrets.API, os.urandom(secrets.RANDOM_BYTES))
    row = {"user_id": user_id, "name": name, "public_id": secret.public_id, "secret_hash": secret.hash}
    tx.run(insert(api_tokens).values(id=new_id(tx.now), **row, scopes=list(scopes), created_at=tx.now))
    return secret.text


def _machine_row(tx: Tx, pool: str, state: str) -> dict[str, Any]:
    size = {"vcpu": 16, "ram_mib": 64 * 1024, "storage_mib": 1024 * 1024}
    empty: dict[str, Any] = {"labels": {}, "inventory": {}, "conditions": []}
    when = {"state_since": tx.now, "joined_at": tx.now}
    return {"pool": pool, "state": state, "key_hash": os.urandom(32), **size, **empty, **when}


def _gpu_row(tx: Tx, machine: dict[str, str], slot: int) -> dict[str, Any]:
    owner = {"id": new_id(tx.now), "org_id": machine["org_id"], "machine_id": machine["id"]}
    what = {"vendor": "nvidia", "model": "H100", "memory_mib": 81920, "state": "ok"}
    return {**owner, **what, "uuid": f"GPU-{machine['name']}-{slot}", "slot": f"0000:{slot:02x}:00.0"}


def _workload_row(tx: Tx) -> dict[str, Any]:
    return {
        "kind": "compute_cluster",
        "state": "active",
        "state_since": tx.now,
        "image": "base",
        "created_at": tx.now,
    }
