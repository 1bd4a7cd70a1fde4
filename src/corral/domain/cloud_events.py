"""Journal entries and alerts in the shape of CloudEvents 1.0 (spec 50, "For the ecosystem").

`type` is the entry's type under `io.corral.`; `source` the organisation at its site; `id` the entry's cursor;
`subject` what it is about. `data` is what `GET …/events` shows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

CONTENT_TYPE = "application/cloudevents+json"
PREFIX = "io.corral."
_SUBJECTS = (
    ("workload", "workload_id"),
    ("machine", "machine_id"),
    ("workspace", "workspace_id"),
    ("cluster", "cluster_id"),
)
_IDS = ("cluster_id", "workspace_id", "machine_id", "workload_id")


def source(site_url: str, org: str) -> str:
    """Return the source of an organisation's events. `org` is its short name."""
    return f"{site_url.rstrip('/')}/api/v1/orgs/{org}"


def cloud_event(entry: Mapping[str, Any], *, source: str, incarnation: str) -> dict[str, Any]:
    """Return a journal entry (columns of `store/tables/journal`) as people outside get it: no address, no request."""
    data = {"actor": entry["actor_name"], "actor_kind": entry["actor_kind"], **_ids(entry), "data": entry["data"]}
    return envelope(
        {"id": f"{incarnation}.{entry['seq']}", "source": source, "type": PREFIX + entry["type"]},
        entry["at"],
        _subject(entry),
        data,
    )


def alert_event(alert: Mapping[str, Any], *, source: str, told: str) -> dict[str, Any]:
    """Return an alert (columns of `store/tables/alerts`) as it is told: `told` is `opened` or `closed`."""
    names = ("kind", "title", "count", *_IDS[:3])
    data = {"id": alert["id"], **{name: alert[name] for name in names}}
    for name in ("opened_at", "last_at", "closed_at"):
        data[name] = rfc3339(alert[name]) if alert[name] is not None else None
    data["data"] = alert["data"]
    attributes = {"id": f"{alert['id']}.{alert['count']}.{told}", "source": source, "type": f"{PREFIX}alert.{told}"}
    at = alert["closed_at"] if told == "closed" else alert["last_at"]
    return envelope(attributes, at, _subject(alert) or f"alert/{alert['id']}", data)


def envelope(attributes: Mapping[str, str], at: datetime, subject: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event; `attributes`: id, source, type. An empty subject is left out, as the specification wants."""
    event: dict[str, Any] = {"specversion": "1.0", **attributes, "time": rfc3339(at)}
    if subject:
        event["subject"] = subject
    return {**event, "datacontenttype": "application/json", "data": data}


def rfc3339(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _ids(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in _IDS}


def _subject(row: Mapping[str, Any]) -> str:
    """Return the narrowest thing that it is about, as `kind/id`; "" for the organisation itself."""
    return next((f"{kind}/{row[name]}" for kind, name in _SUBJECTS if row.get(name)), "")
