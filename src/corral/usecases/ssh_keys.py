"""People's SSH keys (spec 20, "Connect"): added, listed, removed; a removed key is detached everywhere at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from corral.domain import ids
from corral.domain import ssh_keys as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.ssh_keys import PublicKey
from corral.store import fleet
from corral.store import ssh_keys as rows
from corral.store import users as user_rows
from corral.store.transaction import Row, Scope, Wake
from corral.usecases.context import Context


@dataclass(frozen=True)
class SshKey:
    id: str
    name: str
    fingerprint: str
    public_key: str
    created_at: datetime


def add(ctx: Context, name: str | None, public_key: str) -> SshKey:
    """Keep a key of the caller's. Errors: `INVALID_SSH_KEY`, `INVALID_NAME`, `NAME_TAKEN`, `CONFLICT`.

    Without a name it is called by its comment, or its type.
    """
    key = rules.parse(public_key)
    user_rows.lock(ctx.tx, ctx.user.id)
    same = rows.by_fingerprint(ctx.tx, ctx.user.id, key.fingerprint)
    if same is not None:
        raise Refusal("CONFLICT", f"You have this key already, as {ids.shown(same['name'])}.", name=same["name"])
    if rows.count(ctx.tx, ctx.user.id) >= rules.KEYS_MAX:
        raise Refusal("CONFLICT", f"You have {rules.KEYS_MAX} keys. Remove one that is not needed first.")
    called = _name(ctx, name, key)
    id = ctx.new_id()
    rows.add(ctx.tx, id, ctx.user.id, {"name": called, "public_key": key.line, "fingerprint": key.fingerprint})
    ctx.record("ssh_key.added", Subject(), name=called, fingerprint=key.fingerprint)
    return SshKey(id, called, key.fingerprint, key.line, ctx.now)


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[SshKey]:
    """Return the caller's keys by name."""
    return [_key(row) for row in rows.listed(ctx.tx, ctx.user.id, after, limit)]


def resolve(ctx: Context, named: Sequence[str]) -> list[str]:
    """Return the ids of the caller's keys of these names, ids or fingerprints. Errors: `INVALID_REQUEST`.

    In the order given, each once; the keys cannot be removed until the transaction ends.
    """
    found = rows.find(ctx.tx, ctx.user.id, named) if named else ()
    by_name = {row[field]: row["id"] for field in ("name", "fingerprint", "id") for row in found}
    missing = [name for name in named if name not in by_name]
    if missing:
        raise Refusal(
            "INVALID_REQUEST",
            f"ssh_keys: you have no key {ids.shown(missing[0])}. Add it with `corral ssh-key add`, or name another.",
            field="ssh_keys",
        )
    return list(dict.fromkeys(by_name[name] for name in named))


def remove(ctx: Context, named: str) -> None:
    """Remove a key of the caller's, by id or name; streams of what it was attached to are judged again.

    Errors: `NOT_FOUND`.
    """
    fleet.lock_for_keys_of(ctx.tx, ctx.user.id)  # before the key, as whoever attaches it does
    row = rows.lock(ctx.tx, ctx.user.id, named)
    if row is None:
        raise not_found()
    for place in rows.attached(ctx.tx, ctx.user.id, row["id"]):
        for machine_id in rows.detach(ctx.tx, Scope(place["org_id"]), place["workload_id"], row["id"]):
            ctx.wake(Wake.DESIRED, machine_id)
        ctx.wake(Wake.STREAMS, place["workload_id"])
    rows.remove(ctx.tx, ctx.user.id, row["id"])
    ctx.record("ssh_key.removed", Subject(), name=row["name"], fingerprint=row["fingerprint"])


def _name(ctx: Context, asked: str | None, key: PublicKey) -> str:
    taken = rows.names(ctx.tx, ctx.user.id)
    if asked is None:
        return ids.unique_name(ids.display_name((key.comment or key.type)[:90], "name of a key"), taken)
    name = ids.display_name(asked, "name of a key")
    if name in taken:
        raise Refusal("NAME_TAKEN", f"You have a key called {ids.shown(name)} already. Choose another name.")
    return name


def _key(row: Row) -> SshKey:
    return SshKey(row["id"], row["name"], row["fingerprint"], row["public_key"], row["created_at"])
