"""An agent's side of the protocol, word by word: what a test wants said is said, no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import insert
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from corral.domain.machines import MachineRef
from corral.domain.secrets import hashed
from corral.protocol import codec
from corral.protocol.messages import (
    PROTOCOL_VERSION,
    SERVER_MESSAGES,
    Ack,
    AllocationReport,
    Condition,
    Hello,
    Inventory,
    Report,
    Welcome,
)
from corral.store import machines
from corral.store.engine import Database
from corral.store.tables.clusters import clusters as cluster_table
from corral.store.tables.clusters import tenancies
from corral.store.tables.orgs import orgs
from corral.usecases.context import new_id
from tests.live_server import DEADLINE_S, Site, agent_key

M = TypeVar("M")


@dataclass(frozen=True)
class Enrolled:
    """A machine that has joined, and the key that only its agent has."""

    ref: MachineRef
    key: str


def tenancy(db: Database, slug: str = "acme") -> tuple[str, str]:
    """Make an organisation in a cluster of its own; return (organisation, cluster) ids."""
    with db.write() as tx:
        org, cluster = new_id(tx.now), new_id(tx.now)
        tx.run(insert(orgs).values(id=org, slug=slug, name=slug, created_at=tx.now))
        tx.run(insert(cluster_table).values(id=cluster, hosted=False, created_at=tx.now))
        tx.run(insert(tenancies).values(cluster_id=cluster, org_id=org, slug="gpu", name="GPU", joined_at=tx.now))
    return org, cluster


def enrol(db: Database, where: tuple[str, str], *names: str) -> list[Enrolled]:
    """Enrol machines as a join does."""
    made = []
    with db.write() as tx:
        for name in names:
            one = Enrolled(MachineRef(new_id(tx.now), where[0], where[1], name), agent_key())
            machines.add(tx, one.ref, hashed(one.key), {"labels": {}, "hostname": name})
            made.append(one)
    return made


@dataclass
class Speaker:
    """An open session after its hello; `inbox` keeps what came and was not asked for yet."""

    ws: Connection
    welcome: Welcome
    seq: int = 0
    inbox: list[Any] = field(default_factory=list)

    def say(self, kind: str, body: object) -> None:
        self.ws.send(codec.encode(kind, body))

    def report(self, *allocations: AllocationReport, **fields: Any) -> Ack:
        """Send a report and return its ack."""
        self.say_report(*allocations, **fields)
        return self.acked()

    def say_report(self, *allocations: AllocationReport, **fields: Any) -> None:
        self.seq += 1
        given: dict[str, Any] = {"release": "1.0", "boot_id": "b", "pid": 1, "inventory_digest": "d", **fields}
        self.say("report", Report(seq=self.seq, allocations=allocations, **given))

    def acked(self) -> Ack:
        """Return the ack of the newest report."""
        while (ack := self.next(Ack)).seq < self.seq:
            pass
        return ack

    def next(self, kind: type[M]) -> M:
        """Return the next message of a kind; others that come before stay in the inbox."""
        for i, message in enumerate(self.inbox):
            if isinstance(message, kind):
                del self.inbox[i]
                return message
        while True:
            message = codec.decode(self.ws.recv(DEADLINE_S), SERVER_MESSAGES)
            if isinstance(message, kind):
                return message
            self.inbox.append(message)

    def closed(self) -> tuple[int, str]:
        """Wait until the server closes the session; return code and reason."""
        try:
            while True:
                self.inbox.append(codec.decode(self.ws.recv(DEADLINE_S), SERVER_MESSAGES))
        except ConnectionClosed as over:
            assert over.rcvd is not None, "the connection ended without a close frame"
            return over.rcvd.code, over.rcvd.reason


def dial(site: Site, key: str) -> ClientConnection:
    headers = {"Authorization": f"Bearer {key}"}
    return connect(f"{site.ws_url}/api/v1/agent/session", additional_headers=headers, compression=None, proxy=None)


@contextmanager
def session(site: Site, machine: Enrolled, instance: str = "one", **fields: Any) -> Iterator[Speaker]:
    """Open a session of a machine and say hello."""
    with dial(site, machine.key) as ws:
        yield speak(ws, instance, **fields)


def speak(ws: Connection, instance: str = "one", **fields: Any) -> Speaker:
    given: dict[str, Any] = {"protocol": PROTOCOL_VERSION, "release": "1.0", "boot_id": "b", "pid": 1, **fields}
    ws.send(codec.encode("hello", Hello(instance=instance, **given)))
    speaker = Speaker(ws, cast("Welcome", None))
    speaker.welcome = speaker.next(Welcome)
    return speaker


INVENTORY = Inventory("host-1", arch="x86_64", vcpus=32, memory_mib=131072, storage_mib=1_000_000)
FULL_DISK = Condition("disk_pressure", "the disk is full")
