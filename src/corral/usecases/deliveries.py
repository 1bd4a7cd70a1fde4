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
FORGOTTEN_AT_ONCE = 2_000


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

    @property
    def by_webhook(self) -> bool:
        return self.url is not None


@dataclass(frozen=True)
class Result:
    """How sending one delivery went."""

    due: Due
    outcome: Outcome


@dataclass(frozen=True)
class Head:
    """A target for which something waits, and when the first of that is due."""

    org_id: str
    target_id: str
    by_webhook: bool
    next_at: datetime
    able: bool
    """Whether the webhook or rule is there and enabled."""


def heads(tx: Tx) -> Sequence[Head]:
    """Return every target for which something waits."""
    return [
        Head(row["org_id"], row["target_id"], bool(row["by_webhook"]), row["next_at"], bool(row["able"]))
        for row in rows.heads(tx)
    ]


def due_ids(tx: Tx, target_id: str, limit: int) -> Sequence[str]:
    """Return the ids of what is due to a target, the longest waiting first."""
    return rows.due_ids(tx, target_id, limit)


def load(tx: Tx, ids: Collection[str]) -> Mapping[str, Due]:
    """Return deliveries that wait, by id, with what is needed to send them."""
    names = ("id", "org_id", "target_id", "body", "attempts", "url", "secret", "target")
    return {row["id"]: Due(**{name: row[name] for name in names}) for row in rows.load(tx, ids)}


def drop(tx: Tx, target_ids: Collection[str]) -> None:
    """Give up what came to wait for targets in the moment in which they were disabled or removed."""
    for id in sorted(target_ids):
        rows.drop_waiting(tx, id, "Its webhook or rule was disabled or removed.")


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
    next_at = rules.next_try(attempts, outcome, tx.now, chance())
    return {
        "attempts": attempts,
        "status": outcome.status,
        "error": outcome.error,
        "next_at": next_at,
        "delivered_at": tx.now if outcome.taken else None,
        # What is never sent again is not needed either; nothing shows it.
        **({"body": ""} if next_at is None else {}),
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


def forget_old(tx: Tx) -> bool:
    """Forget a batch of what was sent, or given up, long ago; return whether more may be due."""
    return rows.forget_done(tx, tx.now - rules.KEPT_FOR, FORGOTTEN_AT_ONCE)
