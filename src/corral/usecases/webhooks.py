"""Webhooks of an organisation: made, changed, tested, removed; what was delivered (spec 10, "Events, audit")."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.domain import targets
from corral.domain import webhooks as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Entry, Subject
from corral.domain.ids import display_name
from corral.domain.targets import Network
from corral.store import deliveries, site
from corral.store import webhooks as rows
from corral.store.transaction import SITE, Row, Scope, Tx
from corral.usecases import orgs, trials
from corral.usecases.context import Context
from corral.usecases.sealing import Seal

SECRET_PREFIX = "whsec_"  # noqa: S105  # of every such secret
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Asked:
    """What a webhook is to be. `url` was looked up already, where it is a new one."""

    name: str
    url: str
    types: Sequence[str]


@dataclass(frozen=True)
class Change:
    """What is to be changed; None: kept."""

    name: str | None = None
    url: str | None = None
    types: Sequence[str] | None = None
    enabled: bool | None = None
    new_secret: bool = False


@dataclass(frozen=True)
class Made:
    """A webhook with its secret, which is shown this once (None: it stays the one it was)."""

    row: Row
    secret: str | None = field(repr=False)


def opened(ctx: Context) -> tuple[Network, ...]:
    """Return the private networks that the operator lets tenants be told in."""
    return targets.networks(site.private_targets(ctx.tx))


def create(ctx: Context, seal: Seal, asked: Asked) -> Made:
    """Make a webhook. Errors: `INVALID_NAME`, `INVALID_REQUEST`, `CONFLICT` (there are as many as may be)."""
    name, types = display_name(asked.name, "webhook's name"), rules.types(asked.types)
    orgs.locked(ctx)
    if rows.count(ctx.tx, ctx.scope) >= rules.WEBHOOKS_MAX:
        raise Refusal("CONFLICT", f"An organisation has at most {rules.WEBHOOKS_MAX} webhooks. Remove one first.")
    id, secret = ctx.new_id(), _new_secret()
    values = {"id": id, "name": name, "url": asked.url, "types": list(types), "created_by": ctx.user.id}
    rows.add(ctx.tx, ctx.scope, {**values, "secret": seal.seal(secret, id)})
    row = find(ctx, id)
    _record(ctx, "created", row, after=_audited(row))
    return Made(row, secret)


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Row]:
    """Return the webhooks, the oldest first."""
    return rows.listed(ctx.tx, ctx.scope, after, limit)


def find(ctx: Context, id: str) -> Row:
    """Return one. Errors: `NOT_FOUND`."""
    row = rows.get(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    return row


def change(ctx: Context, seal: Seal, id: str, asked: Change) -> Made:
    """Change what is given. Disabling drops what waits. Errors: `NOT_FOUND`, `INVALID_NAME`, `INVALID_REQUEST`."""
    before = _locked(ctx, id)
    values = _changed(before, asked)
    secret = _new_secret() if asked.new_secret else None
    if secret is not None:
        values["secret"] = seal.seal(secret, id)
    if not values:
        return Made(before, None)
    rows.change(ctx.tx, ctx.scope, id, values)
    if values.get("enabled") is False:
        deliveries.drop_waiting(ctx.tx, id, "The webhook was disabled.")
    row = find(ctx, id)
    news = {"new_secret": True} if secret is not None else {}
    _record(ctx, "changed", row, before=_audited(before), after={**_audited(row), **news})
    return Made(row, secret)


def _changed(before: Row, asked: Change) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if asked.name is not None:
        wanted["name"] = display_name(asked.name, "webhook's name")
    if asked.url is not None:
        wanted["url"] = asked.url
    if asked.types is not None:
        wanted["types"] = list(rules.types(asked.types))
    if asked.enabled is not None:
        wanted["enabled"] = asked.enabled
    changed = {name: value for name, value in wanted.items() if before[name] != value}
    if changed.get("enabled") or ("url" in changed and before["failing_since"] is not None):
        changed |= {"disabled_because": "", "failing_since": None}
    return changed


def remove(ctx: Context, id: str) -> None:
    """Remove a webhook; what waits for it is dropped. Errors: `NOT_FOUND`, `CONFLICT` (alert rules tell by it)."""
    row = _locked(ctx, id)
    used_by = rows.rules_of(ctx.tx, ctx.scope, id)
    if used_by:
        names = ", ".join(used_by[:10])
        raise Refusal("CONFLICT", f"Alert rules tell by this webhook: {names}. Change or remove them first.")
    # The secret goes at once; the row stays for what names it.
    rows.change(ctx.tx, ctx.scope, id, {"removed_at": ctx.now, "secret": b""})
    deliveries.drop_waiting(ctx.tx, id, "The webhook was removed.")
    _record(ctx, "removed", row, before=_audited(row))


def test(ctx: Context, id: str, site_url: str) -> str:
    """Put a test out; return the delivery's id. Errors: `NOT_FOUND`, `CONFLICT` (disabled), `RATE_LIMITED`."""
    row = _locked(ctx, id)
    if not row["enabled"]:
        raise Refusal("CONFLICT", "This webhook is disabled. Enable it first.")
    data = {"webhook": row["name"], "message": "A test: what this webhook is told of comes like this."}
    delivery = trials.put_event(ctx, id, f"webhook/{id}", data, site_url)
    _record(ctx, "tested", row)
    return delivery


def delivered(ctx: Context, id: str, before: str | None, limit: int) -> Sequence[Row]:
    """Return what was, or is to be, delivered, the newest first. Errors: `NOT_FOUND`."""
    find(ctx, id)
    return deliveries.of_webhook(ctx.tx, ctx.scope, id, before, limit)


def disable_by_site(tx: Tx, row: Row, why: str) -> None:
    """Disable a webhook, which is locked, and drop what waits for it."""
    if not row["enabled"]:
        return
    rows.change(tx, Scope(row["org_id"]), row["id"], {"enabled": False, "disabled_because": why})
    deliveries.drop_waiting(tx, row["id"], f"The webhook was disabled. {why}")
    tx.record(
        Entry("webhook.disabled", Subject(org=row["org_id"]), {"id": row["id"], "name": row["name"], "reason": why}),
        SITE,
    )


def disable_full(tx: Tx, target_ids: Sequence[str]) -> None:
    """Deal with targets for which more waits than may: a webhook is disabled, a service is not told what waited."""
    hooks = rows.lock_all(tx, target_ids)
    for id in target_ids:
        if id in hooks:
            disable_by_site(tx, hooks[id], f"More than {rules.WAITING_MAX} deliveries waited for it.")
        else:
            deliveries.drop_waiting(tx, id, f"More than {rules.WAITING_MAX} messages waited.")


def _locked(ctx: Context, id: str) -> Row:
    row = rows.locked(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    return row


def _new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()


def _audited(row: Row) -> dict[str, Any]:
    """What the audit keeps: of the URL only where it leads, since a path or query may be a secret."""
    parts = targets.url(row["url"])
    return {
        "name": row["name"],
        "url": f"{parts.scheme}://{parts.authority}/…",
        "types": row["types"],
        "enabled": row["enabled"],
    }


def _record(ctx: Context, what: str, row: Row, **data: Any) -> None:
    ctx.record(f"webhook.{what}", Subject(org=ctx.org.id), id=row["id"], name=row["name"], **data)
