"""A machine joins with a token (spec 40, "Joining"): one token, one machine, whatever gets lost on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.domain import ids, join_tokens, labels, secrets
from corral.domain.allocations import legible
from corral.domain.errors import Refusal
from corral.domain.events import Entry
from corral.domain.machines import MachineRef
from corral.store import clusters as cluster_rows
from corral.store import fleet
from corral.store import join_tokens as token_rows
from corral.store import machines as rows
from corral.store import orgs as org_rows
from corral.store.transaction import Actor, Row, Scope, Tx
from corral.usecases.context import new_id


@dataclass(frozen=True)
class Ask:
    """What a machine sends to join."""

    secret: secrets.Secret
    key_hash: bytes
    hostname: str
    release: str
    address: str = ""
    request_id: str = ""


@dataclass(frozen=True)
class Joined:
    machine: MachineRef
    org: str
    cluster: str
    """Short names."""
    incarnation: str


def asked(token: str, key: str, hostname: str, release: str) -> Ask:
    """Return a join request, checked without the database. Errors: `TOKEN_UNKNOWN`, `INVALID_REQUEST`."""
    secret = secrets.parse(secrets.JOIN, token)
    if secret is None:
        raise join_tokens.unknown()
    return Ask(secret, secrets.hashed(join_tokens.machine_key(key)), legible(hostname, 255), legible(release, 40))


def may_join(tx: Tx, ask: Ask) -> bool:
    """Return whether the token is unused, or used by the machine that asks: what else comes is refused anyhow."""
    token = token_rows.by_public_id(tx, ask.secret.public_id)
    if token is None or not secrets.same(token["secret_hash"], ask.secret.hash):
        return False
    if token["used_at"] is None:
        return join_tokens.why_not(_standing(token), tx.now) is None
    holder = rows.by_key(tx, ask.key_hash)
    return holder is not None and holder["id"] == token["machine_id"]


def join(tx: Tx, ask: Ask) -> Joined | Refusal:
    """Enrol the machine, or give it the identity it has already.

    A refusal is returned, not raised: what it records must be committed. Refusals:
    `MACHINE_REMOVED`, `TOKEN_UNKNOWN`, `TOKEN_USED`, `TOKEN_EXPIRED`, `CONFLICT`.
    """
    token = token_rows.by_public_id(tx, ask.secret.public_id)
    if token is None or not secrets.same(token["secret_hash"], ask.secret.hash):
        return _dead_or_unknown(tx, ask)
    if org_rows.lock(tx, Scope(token["org_id"])) is None:
        return _dead_or_unknown(tx, ask)
    holder = rows.by_key(tx, ask.key_hash)
    if holder is not None:
        return _again(tx, _under_lock(tx, ask), holder)
    return _enrol(tx, token, ask)


def _dead_or_unknown(tx: Tx, ask: Ask) -> Refusal:
    """A removed machine hears so for ever, whatever token it brings."""
    holder = rows.by_key(tx, ask.key_hash)
    dead = holder is not None and holder["removed_at"] is not None
    return join_tokens.removed() if dead else join_tokens.unknown()


def _again(tx: Tx, token: Row, holder: Row) -> Joined | Refusal:
    """The same key again: the same machine, even after the token's expiry."""
    if holder["removed_at"] is not None:
        return join_tokens.removed()
    if token["machine_id"] != holder["id"]:
        return Refusal(
            "CONFLICT",
            f"This machine is enrolled already, as '{holder['name']}'. Remove it first, or revoke this token: "
            "it has not been used.",
        )
    return _joined(tx, rows.ref_of(holder))


def _enrol(tx: Tx, token: Row, ask: Ask) -> Joined | Refusal:
    scope = Scope(token["org_id"])
    version = fleet.touch(tx, scope, token["cluster_id"])
    machine_id = new_id(tx.now)
    if not token_rows.bind(tx, token["id"], ask.key_hash, machine_id):
        return _refused(tx, ask)
    base = ids.cleaned_hostname(ask.hostname)
    name = ids.unique_name(base, rows.names(tx, scope, token["cluster_id"], base))
    ref = MachineRef(machine_id, scope.org, token["cluster_id"], name)
    rows.add(tx, ref, ask.key_hash, {**_columns(token["labels"], ask), "fleet_version": version})
    actor = Actor("machine", ref.id, name, ask.address, ask.request_id)
    tx.record(Entry("cluster.node.joined", ref.subject, {"name": name, "token": token["public_id"]}), actor)
    return _joined(tx, ref)


def _refused(tx: Tx, ask: Ask) -> Refusal:
    """Say why the token could not be bound, as it stands under the organisation's lock."""
    row = _under_lock(tx, ask)
    refusal = join_tokens.why_not(_standing(row), tx.now) or join_tokens.unknown()
    if refusal.code == "TOKEN_USED":
        _record_replay(tx, row, ask)
    return refusal


def _standing(row: Row) -> join_tokens.Found:
    return join_tokens.Found(row["revoked_at"] is not None, row["used_at"] is not None, row["expires_at"])


def _under_lock(tx: Tx, ask: Ask) -> Row:
    """Return the token as it stands now that the organisation is locked."""
    row = token_rows.by_public_id(tx, ask.secret.public_id)
    assert row is not None, "tokens are never deleted"
    return row


def _record_replay(tx: Tx, token: Row, ask: Ask) -> None:
    machine = rows.get(tx, Scope(token["org_id"]), token["machine_id"])
    assert machine is not None, "a used token has its machine"
    actor = Actor("machine", None, ids.cleaned_hostname(ask.hostname), ask.address, ask.request_id)
    data = {"token": token["public_id"], "name": machine["name"], "reason": "used again with another key"}
    tx.record(Entry("cluster.token.replayed", rows.ref_of(machine).subject, data), actor)


def _columns(given: Mapping[str, str], ask: Ask) -> dict[str, Any]:
    where = labels.split(given)
    return {
        "pool": where.pool,
        "site": where.site,
        "rack": where.rack,
        "fabric": where.fabric,
        "labels": dict(where.own),
        "hostname": ask.hostname,
        "release": ask.release,
        "address": ask.address,
    }


def _joined(tx: Tx, ref: MachineRef) -> Joined:
    place = cluster_rows.names_of(tx, Scope(ref.org_id), ref.cluster_id)
    return Joined(ref, place["org"], place["cluster"], place["incarnation"])
