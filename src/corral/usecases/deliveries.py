"""Taking from the outbox what is due, and writing down how it went. Sending stands between the two, in no transaction.

A process that dies in between sends again, under the same id: at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.domain import webhooks as rules
from corral.domain.targets import Network, networks
from corral.domain.webhooks import Outcome
from corral.store import alert_rules, site
from corral.store import deliveries as rows
from corral.store import webhooks as webhook_rows
from corral.store.transaction import Row, Scope, Tx
from corral.usecases.webhooks import disable_by_site

CHANCE = Callable[[], float]


@dataclass(frozen=True)
class Due:
    """A delivery to send now. For a webhook `url` and its sealed `secret`; else a service's sealed `target`."""

    id: str
    org_id: str
    target_id: str
    body: str
    attempts: int
    url: str | None = None
    secret: bytes | None = None
    target: bytes | None = None
    able: bool = True
    """Whether the webhook or rule is there and enabled."""

    @property
    def by_webhook(self) -> bool:
        return self.url is not None


@dataclass(frozen=True)
class Result:
    """How sending one delivery went."""

    due: Due
    outcome: Outcome


def due(tx: Tx, full: Collection[str], limit: int) -> Sequence[Due]:
    """Return what is due, the longest waiting first, of targets that are not `full`."""
    return [_due(row) for row in rows.due(tx, full, limit)]


def _due(row: Row) -> Due:
    shared = (row["id"], row["org_id"], row["target_id"], row["body"], row["attempts"])
    return Due(*shared, row["url"], row["secret"], row["target"], bool(row["able"]))


def drop(tx: Tx, target_ids: Collection[str]) -> None:
    """Give up what came to wait for targets in the moment in which they were disabled or removed."""
    for id in sorted(target_ids):
        rows.drop_waiting(tx, id, "Its webhook or rule was disabled or removed.")


def next_due(tx: Tx) -> datetime | None:
    return rows.next_due(tx)


def opened(tx: Tx) -> tuple[Network, ...]:
    """Return the private networks that tenants may be told in."""
    return networks(site.private_targets(tx))


def settle(tx: Tx, results: Sequence[Result], chance: CHANCE) -> None:
    """Write down how sending went: taken, to be sent again, or given up. Disables webhooks that are gone."""
    hooks = webhook_rows.lock_all(tx, {result.due.target_id for result in results if result.due.by_webhook})
    by_target: dict[str, list[Result]] = {}
    for result in results:
        by_target.setdefault(result.due.target_id, []).append(result)
    for target, of_it in sorted(by_target.items()):
        _note(tx, hooks.get(target), of_it)
    for result in sorted(results, key=lambda result: result.due.id):
        rows.save(tx, result.due.id, _values(tx, result, chance))
    for target, of_it in sorted(by_target.items()):
        if target in hooks:
            _disable(tx, hooks[target], of_it)


def _values(tx: Tx, result: Result, chance: CHANCE) -> Mapping[str, Any]:
    attempts, outcome = result.due.attempts + 1, result.outcome
    return {
        "attempts": attempts,
        "status": outcome.status,
        "error": outcome.error,
        "next_at": rules.next_try(attempts, outcome, tx.now, chance()),
        "delivered_at": tx.now if outcome.taken else None,
    }


def _note(tx: Tx, hook: Row | None, results: Sequence[Result]) -> None:
    """Say beside the target how it takes what it is sent."""
    newest, scope = results[-1], Scope(results[-1].due.org_id)
    if not newest.due.by_webhook:
        alert_rules.change(tx, scope, newest.due.target_id, {"last_at": tx.now, "last_error": newest.outcome.error})
    elif hook is not None:
        taken = any(result.outcome.taken for result in results)
        failing = None if taken else hook["failing_since"] or tx.now
        values = {"last_at": tx.now, "last_status": newest.outcome.status, "failing_since": failing}
        webhook_rows.change(tx, scope, hook["id"], values)


def _disable(tx: Tx, hook: Row, results: Sequence[Result]) -> None:
    if any(result.outcome.gone for result in results):
        disable_by_site(tx, hook, "It answered 410: it is gone.")
    elif any(result.outcome.taken for result in results) or hook["failing_since"] is None:
        return
    elif tx.now - hook["failing_since"] >= rules.FAILING_FOR:
        disable_by_site(tx, hook, f"It has taken nothing for {rules.FAILING_FOR.days} days.")


def forget_old(tx: Tx) -> int:
    """Forget what was sent, or given up, long ago; return how many."""
    return rows.forget_done(tx, tx.now - rules.KEPT_FOR)
