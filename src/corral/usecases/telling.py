"""From the journal to alerts and the outbox: what one batch of entries opens, closes and sends (spec 10).

All tenants' entries in one pass; whose an entry is stands in it. The journal's place moves on in the
transaction that makes the alerts and deliveries: each entry counts once, whatever dies in between.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from corral.domain import alerts as rules
from corral.domain import cloud_events, webhooks
from corral.domain.alerts import Alert, Kind, Sign, Told
from corral.domain.events import is_of
from corral.domain.ids import uuid7
from corral.store import alert_rules, deliveries, orgs, site
from corral.store import alerts as rows
from corral.store import webhooks as webhook_rows
from corral.store.transaction import Row, Scope, Tx
from corral.usecases.webhooks import disable_full

DUE_AT_ONCE = 200
_WHERE = ("cluster_id", "workspace_id", "machine_id", "data", "title")
"""Columns of an alert that it has of the entry which began it last: a GPU, and its fault, may have moved."""
Entry = Mapping[str, Any]
"""A journal entry or an alert, by the names of its columns."""


class Overtaken(RuntimeError):
    """Another process read the journal on from here."""


@dataclass(frozen=True)
class Place:
    """How far the journal was read, as the database has it (None: never), and how far this batch reaches."""

    was: int | None
    reaches: int


def concerns(tx: Tx, entries: Sequence[Entry]) -> bool:
    """Return whether any entry opens or closes an alert, or is something that a webhook is told of."""
    if any(entry["type"] in rules.SIGNS for entry in entries):
        return True
    hooks = _hooks(tx, entries)
    return any(_told_of(entry, hooks.get(entry["org_id"] or "", ())) for entry in entries)


def take_in(tx: Tx, entries: Sequence[Entry], place: Place, site_url: str) -> None:
    """Make what the entries cause, and move on. Errors: `Overtaken`."""
    teller = _Teller(tx, site_url)
    hooks = _hooks(tx, entries)
    for entry in entries:
        if entry["org_id"] is not None:
            teller.hear(entry)
            teller.send_event(entry, _told_of(entry, hooks.get(entry["org_id"], ())))
    teller.put_out()
    # Last: this row is the lease's too, and is held as short as can be.
    if not site.advance_notified(tx, place.was, place.reaches):
        raise Overtaken("the journal was read on by another process")


def tell_due(tx: Tx, site_url: str) -> None:
    """Tell of alerts that opened again while it was quiet, and are still open."""
    teller = _Teller(tx, site_url)
    for row in rows.due(tx, tx.now, DUE_AT_ONCE):
        teller.settle({**row}, *rules.waited(_alert(row), tx.now), row["title"])
    teller.put_out()


def close_lapsed(tx: Tx) -> None:
    """Close the alerts that have no end of their own and are over."""
    for row in rows.open_of_kinds(tx, [kind.value for kind in (*rules.LASTS, Kind.BUDGET)]):
        alert = _alert(row)
        if rules.lapsed(Kind(row["kind"]), alert, tx.now):
            after, _ = rules.ended(alert, tx.now, aloud=False)
            rows.save(tx, Scope(row["org_id"]), row["id"], _values(after))


class _Teller:
    """One transaction's worth of alerts; keeps what is to be sent until `put_out`."""

    def __init__(self, tx: Tx, site_url: str) -> None:
        self._tx, self._site_url = tx, site_url
        self._incarnation = site.incarnation(tx)
        self._made = 0
        self._out: list[dict[str, Any]] = []
        self._rules: dict[str, Sequence[Row]] = {}
        self._slugs: dict[str, str] = {}

    def hear(self, entry: Entry) -> None:
        """Open, count or close the alert that an entry is about."""
        scope = Scope(entry["org_id"])
        if entry["type"] == rules.ENDS_ALL:
            for row in rows.open_of_machine(self._tx, scope, entry["machine_id"]):
                self.settle({**row}, *rules.ended(_alert(row), entry["at"], aloud=False), "")
            return
        sign = rules.sign(entry)
        if sign is None:
            return
        newest = rows.newest_of(self._tx, scope, sign.kind.value, sign.about)
        if sign.begins:
            self._begins(scope, entry, sign, newest)
        elif newest is not None and newest["closed_at"] is None:
            aloud = sign.kind in rules.CLOSED_AS
            self.settle({**newest}, *rules.ended(_alert(newest), entry["at"], aloud=aloud), sign.title)

    def _begins(self, scope: Scope, entry: Entry, sign: Sign, newest: Row | None) -> None:
        after, told = rules.began(_alert(newest) if newest is not None else None, sign.kind, entry["at"])
        what = {**{name: entry[name] for name in _WHERE if name != "title"}, "title": rules.one_line(sign.title)}
        if after.count == 1:
            known = {"id": self._new_id(), "kind": sign.kind.value, "about": sign.about}
            rows.add(self._tx, scope, {**known, **what, **_values(after)})
            self._tell({"org_id": scope.org, **known, **what, **_values(after)}, told, what["title"])
        else:
            assert newest is not None, "only an alert that is there counts"
            self.settle({**newest, **what}, after, told, what["title"])

    def settle(self, row: Entry, after: Alert, told: Told | None, title: str) -> None:
        """Save an alert as it is now, and tell of it."""
        values = {**_values(after), **{name: row[name] for name in _WHERE}}
        rows.save(self._tx, Scope(row["org_id"]), row["id"], values)
        self._tell({**row, **values}, told, title)

    def _tell(self, alert: Mapping[str, Any], told: Told | None, title: str) -> None:
        if told is None:
            return
        word = "opened" if told is Told.OPEN else "closed"
        reached: set[str] = set()
        for rule in self._rules_of(alert["org_id"]):
            target = rule["webhook_id"] or rule["id"]
            if target in reached or not _wanted(rule, alert, told):
                continue
            reached.add(target)
            body = self._alert_body(alert, word) if rule["webhook_id"] else self._message(alert, title)
            self._out.append(_delivery(rule, alert, f"alert.{word}", body))

    def send_event(self, entry: Entry, hooks: Sequence[Row]) -> None:
        """Put an event out for the webhooks that are told of it."""
        if not hooks:
            return
        event = cloud_events.cloud_event(entry, source=self._source(entry["org_id"]), incarnation=self._incarnation)
        for hook in hooks:
            what = {"type": entry["type"], "event_seq": entry["seq"], "body": _json(event)}
            self._out.append(_to_webhook(hook["org_id"], hook["id"]) | what)

    def put_out(self) -> None:
        """Write the outbox. A target for which too much waits already is given no more."""
        counts: dict[str, int] = {}
        for row in self._out:
            counts[row["target_id"]] = counts.get(row["target_id"], 0) + 1
        full = {
            target
            for target, new in counts.items()
            if deliveries.waiting(self._tx, target, webhooks.WAITING_MAX + 1) + new > webhooks.WAITING_MAX
        }
        for row in self._out:
            row["id"] = self._new_id()
        deliveries.add(self._tx, [row for row in self._out if row["target_id"] not in full])
        if full:
            disable_full(self._tx, sorted(full))

    def _new_id(self) -> str:
        """Return an id above those before, though all are of one millisecond: so the journal's order is kept."""
        self._made += 1
        return uuid7(self._tx.now, (self._made & 0xFFF).to_bytes(2, "big") + os.urandom(8))

    def _rules_of(self, org_id: str) -> Sequence[Row]:
        if org_id not in self._rules:
            self._rules[org_id] = alert_rules.enabled(self._tx, Scope(org_id))
        return self._rules[org_id]

    def _slug(self, org_id: str) -> str:
        if org_id not in self._slugs:
            row = orgs.get(self._tx, org_id)
            self._slugs[org_id] = row["slug"] if row is not None else ""
        return self._slugs[org_id]

    def _source(self, org_id: str) -> str:
        return cloud_events.source(self._site_url, self._slug(org_id))

    def _alert_body(self, alert: Mapping[str, Any], word: str) -> str:
        return _json(cloud_events.alert_event(alert, source=self._source(alert["org_id"]), told=word))

    def _message(self, alert: Mapping[str, Any], title: str) -> str:
        text = rules.text(_alert(alert), self._slug(alert["org_id"]), self._site_url)
        return _json({"title": rules.one_line(title), "text": text})


def _hooks(tx: Tx, entries: Sequence[Entry]) -> Mapping[str, Sequence[Row]]:
    """Return the webhooks of the entries' organisations, by organisation."""
    org_ids = {entry["org_id"] for entry in entries if entry["event"] and entry["org_id"] is not None}
    found: dict[str, list[Row]] = {}
    for row in webhook_rows.told_of_events(tx, org_ids) if org_ids else ():
        found.setdefault(row["org_id"], []).append(row)
    return found


def _told_of(entry: Entry, hooks: Sequence[Row]) -> list[Row]:
    """Return those that are told of an entry: an event, since the webhook was made."""
    if not entry["event"]:
        return []
    return [
        hook
        for hook in hooks
        if hook["created_at"] <= entry["at"] and any(is_of(entry["type"], pattern) for pattern in hook["types"])
    ]


def _wanted(rule: Row, alert: Mapping[str, Any], told: Told) -> bool:
    kind = rules.told_as(Kind(alert["kind"]), told)
    of_kind = not rule["kinds"] or kind.value in rule["kinds"]
    return of_kind and rule["cluster_id"] in (None, alert["cluster_id"])


def _delivery(rule: Row, alert: Mapping[str, Any], type: str, body: str) -> dict[str, Any]:
    what = {"type": type, "alert_id": alert["id"], "body": body}
    if rule["webhook_id"]:
        return _to_webhook(alert["org_id"], rule["webhook_id"]) | what
    return {**_to_webhook(alert["org_id"], None), "target_id": rule["id"], "rule_id": rule["id"], **what}


def _to_webhook(org_id: str, id: str | None) -> dict[str, Any]:
    nothing = {"rule_id": None, "alert_id": None, "event_seq": None}
    return {"org_id": org_id, "webhook_id": id, "target_id": id, **nothing}


def _alert(row: Row | Entry) -> Alert:
    told = Told(row["told"]) if row["told"] else None
    names = ("opened_at", "last_at", "count", "closed_at", "told_at", "tell_at")
    return Alert(told=told, **{name: row[name] for name in names})


def _values(alert: Alert) -> dict[str, Any]:
    return {**asdict(alert), "told": alert.told.value if alert.told is not None else ""}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def next_due(tx: Tx) -> datetime | None:
    """Return when an alert that waits is to be told."""
    return rows.next_due(tx)
