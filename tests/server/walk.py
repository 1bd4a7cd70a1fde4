"""A walk through every route of the real app: who may use it, and how to ask it as anybody.

The table is written from the spec's page (05), not from `domain/permissions.py`: the two must
agree. A new route needs one line here; the walk fails while it is missing. Each line has the
scope that an API token needs, and one letter for each of these callers:

    operator, owner, admin, lead and member of the workspace, another member, owner of another organisation
    + let in    F 403    N 404    U 401

Nobody logged in gets 401 where `PUBLIC` is not said; a token without the scope gets 403.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import update as sql_update
from starlette.testclient import WebSocketDenialResponse

from corral.domain import budgets as budget_rules
from corral.domain import join_tokens as join_token_rules
from corral.domain.permissions import Role
from corral.domain.reservations import Given
from corral.store import journal
from corral.store.engine import Database
from corral.store.tables.machines import machines as machine_table
from corral.store.transaction import Tx
from corral.usecases import (
    alert_rules,
    break_glass,
    budgets,
    cluster_requests,
    clusters,
    join_tokens,
    orgs,
    reservations,
    ssh_keys,
    staged_updates,
    tokens,
    webhooks,
)
from tests.world import World, public_key

CALLERS = ("operator", "owner", "admin", "lead", "member", "outsider", "rival")
PUBLIC, MACHINE = "+++++++", "UUUUUUU"
SELF = "+++++++"
SITE = "+FFFFFF"
TENANT_OF_SITE = "+FFFFFN"
ORG_OWNER = "F+FFFFN"
ORG_ADMINS = "F++FFFN"
ORG_ALL = "F+++++N"
ORG_ADMINS_AND_SITE = "+++FFFN"
OWNER_AND_SITE = "++FFFFN"
TEAM_ADMINS = "F++FFNN"
TEAM = "F++++NN"

ORG = "/api/v1/orgs/{org}"
WS = ORG + "/workspaces/{ws}"
CLUSTER = ORG + "/clusters/{cluster}"
NODE = CLUSTER + "/nodes/{node}"
COMPUTE = WS + "/compute-clusters"
ONE = COMPUTE + "/{name}"
KEYS = {"keys": ["laptop"]}
ACCESS = {"pools": ["*"]}
NEXT_YEAR = datetime.now(timezone.utc).year + 1
RESERVE = {
    "pool": {"pool": "h100"},
    "start": f"{NEXT_YEAR}-01-01T00:00:00Z",
    "end": f"{NEXT_YEAR}-01-02T00:00:00Z",
}
PRICES = {"currency": "EUR", "gpu_hour": {"*": "2.50"}}
BUDGET = {"amount": "1000.00", "currency": "EUR"}


@dataclass(frozen=True)
class Line:
    method: str
    path: str
    who: str
    scope: str = ""
    body: dict[str, Any] | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Values of the path's parameters that are not the usual ones."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


TABLE = [
    Line("GET", "/healthz", PUBLIC),
    Line("GET", "/readyz", PUBLIC),
    Line("GET", "/login", PUBLIC),
    Line("GET", "/api/v1/version", PUBLIC),
    Line("GET", "/api/v1/ca.pem", PUBLIC),
    Line("GET", "/api/v1/openapi.json", PUBLIC),
    Line("GET", "/api/v1/install.sh", PUBLIC),
    Line("GET", "/api/v1/agent/artefact/{file}", PUBLIC, names={"file": "SHA256SUMS"}),
    Line("POST", "/api/v1/login", PUBLIC, body={}),
    Line("POST", "/api/v1/login/link", PUBLIC, body={}),
    Line("POST", "/api/v1/agent/join", PUBLIC, body={}),
    Line("WS", "/api/v1/agent/session", MACHINE),
    Line("WS", "/api/v1/agent/streams/{stream}", MACHINE, names={"stream": "0"}),
    Line("GET", "/api/v1/site", SITE, "site"),
    Line("PATCH", "/api/v1/site", SITE, "site", {"contact": "ops"}),
    Line("GET", "/api/v1/site/audit", SITE, "site"),
    Line("GET", "/api/v1/orgs", SELF, "org:read"),
    Line("POST", "/api/v1/orgs", SITE, "site", {"slug": "fresh", "name": "Fresh"}),
    Line("DELETE", ORG, TENANT_OF_SITE, "site"),
    Line("POST", ORG + "/owner-invitations", TENANT_OF_SITE, "site", {}),
    Line("POST", ORG + "/dedicated-clusters", TENANT_OF_SITE, "site", {"slug": "own", "name": "Own"}),
    Line("PUT", ORG + "/machine-limit", TENANT_OF_SITE, "site", {"machines": 20}),
    Line("GET", "/api/v1/site/clusters", SITE, "site"),
    Line("DELETE", "/api/v1/site/clusters/{id}", SITE, "site"),
    Line("GET", "/api/v1/site/cluster-requests", SITE, "site"),
    Line("POST", "/api/v1/site/cluster-requests/{id}/answer", SITE, "site", {"decline": "no room"}),
    Line("POST", ORG + "/break-glass", TENANT_OF_SITE, "site", {"reason": "a call for help"}),
    Line("GET", ORG + "/break-glass", ORG_ADMINS_AND_SITE, "org:read"),
    Line("DELETE", ORG + "/break-glass/{id}", OWNER_AND_SITE, "org:write"),
    Line("GET", ORG, ORG_ALL, "org:read"),
    Line("PATCH", ORG, ORG_OWNER, "org:write", {"name": "Acme"}),
    Line("GET", ORG + "/members", ORG_ALL, "org:read"),
    Line("PATCH", ORG + "/members/{user}", ORG_ADMINS, "org:write", {"role": "member"}),
    Line("DELETE", ORG + "/members/{user}", ORG_ADMINS, "org:write"),
    Line("POST", ORG + "/members/{user}/login-links", ORG_OWNER, "org:write"),
    Line("GET", ORG + "/invitations", ORG_ALL, "org:read"),
    Line("POST", ORG + "/invitations", ORG_OWNER, "org:write", {"role": "member"}),
    Line("DELETE", ORG + "/invitations/{id}", ORG_OWNER, "org:write"),
    Line("GET", ORG + "/workspaces", ORG_ALL, "org:read"),
    Line("POST", ORG + "/workspaces", ORG_ADMINS, "org:write", {"slug": "fresh"}),
    Line("GET", WS, TEAM, "org:read"),
    Line("PATCH", WS, TEAM_ADMINS, "org:write", {"name": "Research"}),
    Line("DELETE", WS, TEAM_ADMINS, "org:write"),
    Line("GET", WS + "/members", TEAM, "org:read"),
    Line("PUT", WS + "/members/{user}", TEAM_ADMINS, "org:write", {"part": "lead"}),
    Line("DELETE", WS + "/members/{user}", TEAM_ADMINS, "org:write", names={"user": "member"}),
    Line("GET", WS + "/access", TEAM, "org:read"),
    Line("PUT", WS + "/access/{cluster}", TEAM_ADMINS, "org:write", ACCESS),
    Line("DELETE", WS + "/access/{cluster}", TEAM_ADMINS, "org:write"),
    Line("POST", ORG + "/hosted-cluster", ORG_ADMINS, "machines:write"),
    Line("GET", ORG + "/clusters", ORG_ALL, "machines:read"),
    Line("GET", CLUSTER, ORG_ALL, "machines:read"),
    Line("PATCH", CLUSTER, ORG_ADMINS, "machines:write", {"name": "Ours"}),
    Line("DELETE", CLUSTER, ORG_ADMINS, "machines:write"),
    Line("GET", ORG + "/cluster-requests", ORG_ADMINS, "machines:read"),
    Line("POST", ORG + "/cluster-requests", ORG_ADMINS, "machines:write", {"name": "Ours alone"}),
    Line("DELETE", ORG + "/cluster-requests/{id}", ORG_ADMINS, "machines:write"),
    Line("GET", CLUSTER + "/enrollment-tokens", ORG_ADMINS, "machines:read"),
    Line("POST", CLUSTER + "/enrollment-tokens", ORG_ADMINS, "machines:write", {}),
    Line("DELETE", CLUSTER + "/enrollment-tokens/{id}", ORG_ADMINS, "machines:write"),
    Line("POST", WS + "/enrollment-tokens", TEAM_ADMINS, "machines:write", {}),
    Line("GET", CLUSTER + "/nodes", ORG_ADMINS, "machines:read"),
    Line("GET", NODE, ORG_ADMINS, "machines:read"),
    Line("POST", NODE + "/cordon", ORG_ADMINS, "machines:write", {}),
    Line("POST", NODE + "/uncordon", ORG_ADMINS, "machines:write"),
    Line("POST", NODE + "/release-quarantine", ORG_ADMINS, "machines:write"),
    Line("POST", NODE + "/update", ORG_ADMINS, "machines:write"),
    Line("POST", NODE + "/gpus/{gpu}/clear-fault", ORG_ADMINS, "machines:write", names={"gpu": "GPU-gpu-1-0"}),
    Line("GET", CLUSTER + "/gpu-faults", ORG_ADMINS, "machines:read"),
    Line("GET", CLUSTER + "/update-agents", ORG_ADMINS, "machines:read"),
    Line("POST", CLUSTER + "/update-agents", ORG_ADMINS, "machines:write"),
    Line("DELETE", CLUSTER + "/update-agents", ORG_ADMINS, "machines:write"),
    Line("DELETE", NODE, ORG_ADMINS, "machines:write"),
    Line("PUT", NODE + "/data-location", ORG_ADMINS, "machines:write", {"path": "/srv/corral"}),
    Line("DELETE", NODE + "/data-location", ORG_ADMINS, "machines:write"),
    Line("GET", "/api/v1/site/prices", SITE, "site"),
    Line("PUT", "/api/v1/site/prices", SITE, "site", PRICES),
    Line("GET", CLUSTER + "/prices", ORG_ALL, "machines:read"),
    Line("PUT", CLUSTER + "/prices", TENANT_OF_SITE, "machines:write", PRICES),  # the walk's cluster is the hosted one
    Line("GET", ORG + "/usage", ORG_ALL, "org:read"),
    Line("GET", ORG + "/budgets", ORG_ADMINS, "org:read"),
    Line("PUT", ORG + "/budgets/{ws}", TEAM_ADMINS, "org:write", BUDGET),
    Line("DELETE", ORG + "/budgets/{ws}", TEAM_ADMINS, "org:write"),
    Line("GET", ORG + "/alerts", ORG_ALL, "org:read"),
    Line("GET", ORG + "/alert-rules", ORG_ADMINS, "org:read"),
    Line("POST", ORG + "/alert-rules", ORG_ADMINS, "org:write", {"name": "r", "target": "json://localhost"}),
    Line("PATCH", ORG + "/alert-rules/{id}", ORG_ADMINS, "org:write", {"kinds": ["budget"], "cluster": "default"}),
    Line("DELETE", ORG + "/alert-rules/{id}", ORG_ADMINS, "org:write"),
    Line("POST", ORG + "/alert-rules/{id}/test", ORG_ADMINS, "org:write"),
    Line("GET", ORG + "/webhooks", ORG_ADMINS, "org:read"),
    Line("POST", ORG + "/webhooks", ORG_ADMINS, "org:write", {"name": "w", "url": "https://127.0.0.1/"}),
    Line("PATCH", ORG + "/webhooks/{id}", ORG_ADMINS, "org:write", {"name": "other", "types": ["cluster.*"]}),
    Line("DELETE", ORG + "/webhooks/{id}", ORG_ADMINS, "org:write"),
    Line("POST", ORG + "/webhooks/{id}/test", ORG_ADMINS, "org:write"),
    Line("GET", ORG + "/webhooks/{id}/deliveries", ORG_ADMINS, "org:read"),
    Line("PUT", NODE + "/placement", ORG_ADMINS, "machines:write", {"rack": "r1"}),
    Line("GET", CLUSTER + "/reservations", ORG_ALL, "machines:read"),
    Line("POST", CLUSTER + "/reservations", ORG_ADMINS, "machines:write", RESERVE),
    Line("GET", CLUSTER + "/reservations/{id}", ORG_ALL, "machines:read"),
    Line("DELETE", CLUSTER + "/reservations/{id}", ORG_ADMINS, "machines:write"),
    Line("GET", WS + "/machines", TEAM, "machines:read"),
    Line("GET", WS + "/gpus", TEAM, "machines:read"),
    Line("GET", WS + "/topology", TEAM, "machines:read"),
    Line("GET", COMPUTE, TEAM, "compute:read"),
    Line("POST", COMPUTE, TEAM, "compute:write", {"name": "fresh"}),
    Line("GET", ONE, TEAM, "compute:read"),
    Line("DELETE", ONE, TEAM, "compute:write"),
    Line("GET", ONE + "/logs", TEAM, "compute:read"),
    Line("GET", ONE + "/connection", TEAM, "compute:connect"),
    Line("GET", ONE + "/ssh-keys", TEAM, "compute:read"),
    Line("PUT", ONE + "/ssh-keys", TEAM, "compute:write", KEYS),
    Line("DELETE", ONE + "/ssh-keys", TEAM, "compute:write", KEYS),
    Line("WS", ONE + "/stream", TEAM, "compute:connect"),
    Line("POST", WS + "/placements/explain", TEAM, "compute:read", {"gpus": 1}),
    Line("GET", ORG + "/events", ORG_ALL, "org:read"),
    Line("GET", ORG + "/events/stream", ORG_ALL, "org:read"),
    Line("GET", ORG + "/events/export", ORG_ALL, "org:read"),
    Line("GET", ORG + "/audit", ORG_ADMINS, "org:read"),
    Line("GET", ORG + "/audit/export", ORG_ADMINS, "org:read"),
    Line("GET", "/api/v1/me", SELF, "me"),
    Line("PATCH", "/api/v1/me", SELF, "me", {"name": "Me"}),
    Line("PUT", "/api/v1/me/password", SELF, "me", {"password": "correct horse battery"}),
    Line("GET", "/api/v1/me/ssh-keys", SELF, "me"),
    Line("POST", "/api/v1/me/ssh-keys", SELF, "me", {"public_key": "ssh-ed25519 x"}),
    Line("DELETE", "/api/v1/me/ssh-keys/{id}", SELF, "me"),
    Line("GET", "/api/v1/me/tokens", SELF, "me"),
    Line("POST", "/api/v1/me/tokens", SELF, "me", {"name": "ci", "scopes": ["me"]}),
    Line("DELETE", "/api/v1/me/tokens/{id}", SELF, "me"),
]
STREAMS = {ORG + "/events/stream"}
"""Answers that end only when their reader goes."""
CODES = {"U": (401, "UNAUTHENTICATED"), "F": (403, "FORBIDDEN"), "N": (404, "NOT_FOUND")}


class _Undo(Exception):
    pass


class Forgetful(Database):
    """While `forgets`, every write is undone at its end, its journal written first: so one world serves the whole walk.

    `written`: the journal's entries that were undone, oldest first.
    """

    forgets = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written: list[dict[str, Any]] = []

    @contextmanager
    def write(self, *, of_lease: bool = False) -> Iterator[Tx]:
        try:
            with super().write(of_lease=of_lease) as tx:
                yield tx
                if self.forgets:
                    self._append(tx)
                    raise _Undo
        except _Undo:
            pass

    def _append(self, tx: Tx) -> None:
        newest = journal.newest(tx)
        tx.append_journal()
        self.written += [dict(row) for row in journal.after(tx, newest, 1_000)]


class Walk:
    """A running world with one of everything, and how to ask it as anybody."""

    def __init__(self, world: World, db: Forgetful) -> None:
        self.world, self.db = world, db
        world.app.state.ca_pem = "a certificate"
        world.add_machine("gpu-1")
        world.add_workload("dev", "gpu-1", gpu_count=1)
        with world.act("admin", "acme") as ctx:
            ctx.tx.run(sql_update(machine_table).values(release="0.0.1"))
            staged_updates.start(ctx, "default", "9.9.9")
            staged_updates.stop(ctx, "default")
        with world.act("operator", "rival") as ctx:
            clusters.create_dedicated(ctx, "rivals-own", "Rival's own")
        with world.act("operator", "acme") as ctx:
            own = clusters.create_dedicated(ctx, "left", "Left").id
            look = break_glass.begin(ctx, "to see", 60).id
        with world.act("admin", "acme") as ctx:
            request = cluster_requests.ask(ctx, "Ours", "")
            clusters.leave(ctx, "left")
        with world.act("operator", "acme") as ctx:
            break_glass.end(ctx, look)
        with world.act("owner", "acme", "research") as ctx:
            budgets.put(ctx, budget_rules.asked("10.00", "EUR", [100]))
        with world.act("owner", "acme") as ctx:
            invitation = orgs.invite(ctx, Role.MEMBER, None, None)
            self.link = invitation.text
            reserved = Given(f"{NEXT_YEAR}-02-01T00:00:00Z", f"{NEXT_YEAR}-02-02T00:00:00Z", nodes=["gpu-1"])
            self.ids = {
                "invitations": invitation.id,
                "break-glass": look,
                "clusters": own,
                "cluster-requests": request.id,
                "reservations": reservations.create(ctx, "default", reserved).id,
                "enrollment-tokens": join_tokens.create(ctx, "default", join_token_rules.asked({}, 3600)).id,
            }
        with world.act("admin", "acme") as ctx:
            seal = world.app.state.seal
            hook = webhooks.create(ctx, seal, webhooks.Asked("hook", "https://hooks.example.com/", ["cluster.*"])).row
            rule = alert_rules.create(ctx, seal, alert_rules.Asked("r", told=alert_rules.Told(webhook=hook["id"])))
            self.ids |= {"webhooks": hook["id"], "alert-rules": rule["id"]}
        self.own_tokens = {}
        for who in CALLERS:
            with world.act(who) as ctx:
                ssh_keys.add(ctx, "laptop", public_key())
                self.own_tokens[who] = tokens.create(ctx, "spare", ["me"], None).token.id

    def token(self, who: str, scopes: list[str]) -> str:
        """Make an API token that stays."""
        self.db.forgets = False
        try:
            return self.world.token(who, scopes)
        finally:
            self.db.forgets = True

    def url(self, line: Line, who: str | None, **other: str) -> str:
        kind = line.path.partition("/{id}")[0].rsplit("/", 1)[-1]
        own = {"tokens": self.own_tokens.get(who or "", "absent"), "ssh-keys": "laptop", **self.ids}
        usual = {"org": "acme", "ws": "research", "cluster": "default", "node": "gpu-1", "name": "dev"}
        return line.path.format(**{**usual, "user": "outsider", "id": own.get(kind, ""), **line.names, **other})

    def ask(self, line: Line, url: str, token: str | None) -> tuple[int, dict[str, Any]]:
        """Return status and body (without the request id) of what the line's route answers."""
        client = self.world.client(token=token)
        if line.method == "WS":
            return self._handshake(url, token)
        if line.path in STREAMS:
            status = self._first_status(url, client.headers)
            if status == 200:
                return status, {}
        answer = client.request(line.method, url, json=line.body)
        try:
            body = answer.json()
        except ValueError:
            body = {}
        if isinstance(body, dict):
            body.pop("request_id", None)
        return answer.status_code, body

    def _handshake(self, url: str, token: str | None) -> tuple[int, dict[str, Any]]:
        try:
            with self.world.client(token=token).websocket(url):
                return 101, {}
        except WebSocketDenialResponse as denied:
            body = denied.json()
            body.pop("request_id", None)
            return denied.status_code, body

    def _first_status(self, url: str, headers: dict[str, str]) -> int:
        """Return the status of an answer without waiting for its end."""
        app, portal = self.world.app, self.world.http.portal
        assert portal is not None

        async def ask() -> int:
            status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            path, _, query = url.partition("?")

            async def receive() -> dict[str, Any]:
                await status
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    status.set_result(message["status"])

            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            scope: dict[str, Any] = {
                "state": {},
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "root_path": "",
            }
            scope |= {"query_string": query.encode(), "headers": raw, "scheme": "http", "http_version": "1.1"}
            scope |= {"client": ("192.0.2.1", 1), "server": ("corral.test", 80)}
            answering = asyncio.ensure_future(app(scope, receive, send))
            found = await status
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            return found

        return portal.call(ask)


@contextmanager
def walking(db_url: str, folder: Path) -> Iterator[Walk]:
    """Yield a walk through a running app on a fresh migrated database."""
    db = Forgetful(db_url)
    try:
        world = World(db, folder)
        with world.running():
            made = Walk(world, db)
            db.forgets = True
            yield made
            db.forgets = False
    finally:
        db.close()
