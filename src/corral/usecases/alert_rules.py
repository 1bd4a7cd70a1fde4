"""Alert rules: who is told of which kinds, by a webhook or a mail or chat service (spec 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.domain import alerts, webhooks
from corral.domain.alert_targets import Target
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Subject
from corral.domain.ids import display_name, is_uuid
from corral.store import alert_rules as rows
from corral.store import deliveries
from corral.store import webhooks as webhook_rows
from corral.store.transaction import Row
from corral.usecases import clusters, orgs, trials
from corral.usecases.context import Context
from corral.usecases.sealing import Seal


@dataclass(frozen=True)
class Told:
    """Who is told: one of the two. `webhook` is an id; `target` was looked up already."""

    webhook: str | None = None
    target: Target | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Asked:
    """What a rule is to be; None: kept (of a new rule: every kind, every cluster, enabled)."""

    name: str | None = None
    kinds: list[str] | None = None
    cluster: str | None = None
    every_cluster: bool = False
    told: Told = field(default_factory=Told)
    enabled: bool | None = None


def create(ctx: Context, seal: Seal, asked: Asked) -> Row:
    """Make a rule. Errors: `INVALID_NAME`, `INVALID_REQUEST`, `NOT_FOUND` (cluster, webhook), `CONFLICT` (too many)."""
    orgs.locked(ctx)
    if rows.count(ctx.tx, ctx.scope) >= webhooks.RULES_MAX:
        raise Refusal("CONFLICT", f"An organisation has at most {webhooks.RULES_MAX} alert rules. Remove one first.")
    if asked.told.webhook is None and asked.told.target is None:
        raise Refusal("INVALID_REQUEST", "target: say who is told, by 'target' or by 'webhook'.", field="target")
    id = ctx.new_id()
    values = {"kinds": [], "target_shown": "", "created_by": ctx.user.id, **_values(ctx, seal, id, asked)}
    rows.add(ctx.tx, ctx.scope, {"id": id, **values})
    row = find(ctx, id)
    _record(ctx, "created", row, after=_audited(row))
    return row


def listed(ctx: Context, after: str | None, limit: int) -> Sequence[Row]:
    """Return the rules, the oldest first."""
    return rows.listed(ctx.tx, ctx.scope, after, limit)


def find(ctx: Context, id: str) -> Row:
    """Return one. Errors: `NOT_FOUND`."""
    row = rows.get(ctx.tx, ctx.scope, id)
    if row is None:
        raise not_found()
    return row


def change(ctx: Context, seal: Seal, id: str, asked: Asked) -> Row:
    """Change what is given. Who is not told any more gets nothing that waits. Errors: as of `create`."""
    before = _locked(ctx, id)
    wanted = _values(ctx, seal, id, asked)
    changed = {name: value for name, value in wanted.items() if before[name] != value}
    if not changed:
        return before
    rows.change(ctx.tx, ctx.scope, id, changed)
    if changed.get("enabled") is False or "target" in changed:
        deliveries.drop_waiting(ctx.tx, id, "The rule was changed.")
    row = find(ctx, id)
    _record(ctx, "changed", row, before=_audited(before), after=_audited(row))
    return row


def remove(ctx: Context, id: str) -> None:
    """Remove a rule. Errors: `NOT_FOUND`."""
    row = _locked(ctx, id)
    # What opens the target goes at once; the row stays for what names it.
    rows.change(ctx.tx, ctx.scope, id, {"removed_at": ctx.now, "target": None})
    deliveries.drop_waiting(ctx.tx, id, "The rule was removed.")
    _record(ctx, "removed", row, before=_audited(row))


def test(ctx: Context, id: str, site_url: str) -> str:
    """Put a test out to whom the rule tells; return the delivery's id.

    Errors: `NOT_FOUND`, `CONFLICT` (its webhook is disabled), `RATE_LIMITED` (one is on its way).
    """
    row = _locked(ctx, id)
    if row["webhook_id"] is not None:
        _check_enabled(ctx, row["webhook_id"])
        delivery = trials.put_event(ctx, row["webhook_id"], f"alert-rule/{id}", {"rule": row["name"]}, site_url)
    else:
        text = f"Organisation {ctx.org.slug} at {site_url}. Alerts come like this."
        delivery = trials.put_message(ctx, id, f"A test of alert rule {row['name']}", text)
    _record(ctx, "tested", row)
    return delivery


def _check_enabled(ctx: Context, webhook_id: str) -> None:
    hook = webhook_rows.get(ctx.tx, ctx.scope, webhook_id)
    if hook is None or not hook["enabled"]:
        raise Refusal("CONFLICT", "The rule's webhook is disabled. Enable it first.")


def _values(ctx: Context, seal: Seal, id: str, asked: Asked) -> dict[str, Any]:
    """Return the columns that are asked for."""
    values: dict[str, Any] = {}
    if asked.name is not None:
        values["name"] = display_name(asked.name, "rule's name")
    if asked.kinds is not None:
        values["kinds"] = [kind.value for kind in alerts.kinds(asked.kinds)]
    if asked.enabled is not None:
        values["enabled"] = asked.enabled
    if asked.cluster is not None or asked.every_cluster:
        values["cluster_id"] = clusters.find(ctx, asked.cluster)["cluster_id"] if asked.cluster is not None else None
    return values | _told(ctx, seal, id, asked.told)


def _told(ctx: Context, seal: Seal, id: str, told: Told) -> dict[str, Any]:
    if told.webhook is not None:
        # What is no id is nobody's, and a database would stumble over some (NUL, half a surrogate pair).
        if not is_uuid(told.webhook) or webhook_rows.get(ctx.tx, ctx.scope, told.webhook) is None:
            raise not_found()
        return {"webhook_id": told.webhook, "target": None, "target_shown": ""}
    if told.target is not None:
        sealed = seal.seal(told.target.url, id)
        return {"webhook_id": None, "target": sealed, "target_shown": told.target.shown, "last_error": ""}
    return {}


def _locked(ctx: Context, id: str) -> Row:
    rows.lock(ctx.tx, ctx.scope, id)
    return find(ctx, id)


def _audited(row: Row) -> dict[str, Any]:
    names = ("name", "kinds", "cluster", "webhook", "enabled")
    return {**{name: row[name] for name in names}, "target": row["target_shown"]}


def _record(ctx: Context, what: str, row: Row, **data: Any) -> None:
    ctx.record(f"alert_rule.{what}", Subject(org=ctx.org.id), id=row["id"], name=row["name"], **data)
