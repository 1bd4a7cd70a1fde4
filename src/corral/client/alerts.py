"""Alerts, the rules that say who is told, and webhooks, as the SDK sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.client.decode import View, decode
from corral.client.transport import Transport, quoted


@dataclass(frozen=True, kw_only=True)
class Alert(View):
    """A condition that people are told of; `count`: how often it began, `told_at`: when people were last told."""

    id: str
    kind: str
    title: str
    open: bool
    count: int
    opened_at: datetime
    last_at: datetime
    closed_at: datetime | None = None
    told_at: datetime | None = None
    cluster_id: str | None = None
    workspace_id: str | None = None
    machine_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AlertRule(View):
    """`kinds` empty: every kind; `cluster` None: every cluster. Told by `webhook` (an id), else at `target`.

    `target` is shown without its secrets. `problem` says why nobody is told; `last_error`: how it went last.
    """

    id: str
    name: str
    kinds: list[str]
    enabled: bool
    cluster: str | None = None
    webhook: str | None = None
    target: str = ""
    problem: str = ""
    last_at: datetime | None = None
    last_error: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Webhook(View):
    """`types` empty: told of alerts only. `failing_since`: it has taken nothing since then."""

    id: str
    name: str
    url: str
    types: list[str]
    enabled: bool
    problem: str = ""
    failing_since: datetime | None = None
    last_at: datetime | None = None
    last_status: int | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class WebhookWithSecret(Webhook):
    """`secret` is what deliveries are signed with, and comes once: None in a replay, or when it stays as it was."""

    secret: str | None = None


@dataclass(frozen=True, kw_only=True)
class Delivery(View):
    """`webhook_id` is the header of that name; `state`: waiting | delivered | given_up."""

    id: str
    webhook_id: str
    type: str
    state: str
    attempts: int
    created_at: datetime
    status: int | None = None
    error: str = ""
    next_at: datetime | None = None
    delivered_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SentTest(View):
    """The delivery of a test: how it goes stands with the webhook's deliveries, or beside the rule."""

    delivery: str


class AlertRules:
    """An organisation's alert rules. Admins only. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, org_path: str) -> None:
        self._transport = transport
        self._path = f"{org_path}/alert-rules"

    def list(self) -> Iterator[AlertRule]:
        """Yield the rules, the oldest first."""
        for item in self._transport.pages(self._path):
            yield decode(AlertRule, item)

    def create(
        self,
        name: str,
        *,
        kinds: Sequence[str] = (),
        cluster: str | None = None,
        webhook: str | None = None,
        target: str | None = None,
    ) -> AlertRule:
        """Tell by a webhook (its id) or at a target (an address as apprise writes it). Errors: `INVALID_URL`, …"""
        given = {"cluster": cluster, "webhook": webhook, "target": target}
        body = {"name": name, "kinds": list(kinds), **{key: value for key, value in given.items() if value is not None}}
        return decode(AlertRule, self._transport.call("POST", self._path, body))

    def change(self, id: str, **changes: Any) -> AlertRule:
        """Change what is given: name, kinds, cluster (None: every one), webhook, target, enabled."""
        return decode(AlertRule, self._transport.call("PATCH", f"{self._path}/{quoted(id)}", changes))

    def remove(self, id: str) -> None:
        self._transport.call("DELETE", f"{self._path}/{quoted(id)}")

    def test(self, id: str) -> SentTest:
        """Send a test to whom the rule tells. Errors: `CONFLICT` (its webhook is disabled), `RATE_LIMITED`."""
        return decode(SentTest, self._transport.call("POST", f"{self._path}/{quoted(id)}/test"))


class Webhooks:
    """An organisation's webhooks. Admins only. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, org_path: str) -> None:
        self._transport = transport
        self._path = f"{org_path}/webhooks"

    def list(self) -> Iterator[Webhook]:
        """Yield the webhooks, the oldest first; never their secrets."""
        for item in self._transport.pages(self._path):
            yield decode(Webhook, item)

    def create(self, name: str, url: str, types: Sequence[str] = ()) -> WebhookWithSecret:
        """Make one; the secret comes once. `types` may end in `.*`; none: alerts only. Errors: `INVALID_URL`, …"""
        body = {"name": name, "url": url, "types": list(types)}
        return decode(WebhookWithSecret, self._transport.call("POST", self._path, body))

    def change(self, id: str, **changes: Any) -> WebhookWithSecret:
        """Change what is given: name, url, types, enabled; `new_secret=True` makes another secret."""
        return decode(WebhookWithSecret, self._transport.call("PATCH", f"{self._path}/{quoted(id)}", changes))

    def remove(self, id: str) -> None:
        """Remove one by which no alert rule tells. Errors: `CONFLICT`, naming the rules."""
        self._transport.call("DELETE", f"{self._path}/{quoted(id)}")

    def test(self, id: str) -> SentTest:
        """Send a test event. Errors: `CONFLICT` (disabled), `RATE_LIMITED` (one is on its way)."""
        return decode(SentTest, self._transport.call("POST", f"{self._path}/{quoted(id)}/test"))

    def deliveries(self, id: str) -> Iterator[Delivery]:
        """Yield what was, or is to be, delivered, the newest first."""
        for item in self._transport.pages(f"{self._path}/{quoted(id)}/deliveries"):
            yield decode(Delivery, item)
