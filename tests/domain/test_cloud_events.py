"""CloudEvents 1.0: what must be there, and what must not."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from corral.domain import cloud_events

AT = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=timezone.utc)
SOURCE = cloud_events.source("https://corral.example.com/", "acme")


def entry(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"seq": 7, "type": "cluster.node.down", "at": AT, "actor_name": "site", "actor_kind": "site"}
    row |= {"address": "192.0.2.7", "request_id": "r1", "data": {"name": "gpu-1"}, "org_id": "o"}
    row |= {"cluster_id": "c", "workspace_id": None, "machine_id": "m", "workload_id": None}
    return {**row, **values}


def test_an_entry_has_every_attribute_and_nothing_that_is_only_for_the_audit() -> None:
    event = cloud_events.cloud_event(entry(), source=SOURCE, incarnation="i")
    assert {name: event[name] for name in event if name != "data"} == {
        "specversion": "1.0",
        "id": "i.7",
        "source": "https://corral.example.com/api/v1/orgs/acme",
        "type": "io.corral.cluster.node.down",
        "subject": "machine/m",
        "time": "2026-03-01T12:00:00.000005Z",
        "datacontenttype": "application/json",
    }
    assert event["data"]["data"] == {"name": "gpu-1"} and event["data"]["machine_id"] == "m"
    assert "192.0.2.7" not in json.dumps(event) and "r1" not in json.dumps(event)


def test_the_subject_is_the_narrowest_thing_and_left_out_for_the_organisation_itself() -> None:
    event = cloud_events.cloud_event(entry(workload_id="w"), source=SOURCE, incarnation="i")
    assert event["subject"] == "workload/w"
    event = cloud_events.cloud_event(entry(machine_id=None, cluster_id=None), source=SOURCE, incarnation="i")
    assert "subject" not in event


def test_an_alert_is_one_event_when_it_opens_and_another_when_it_closes() -> None:
    alert = {"id": "a", "kind": "machine_down", "title": "Machine gpu-1 is down", "count": 2, "data": {"name": "gpu-1"}}
    alert |= {
        "cluster_id": "c",
        "workspace_id": None,
        "machine_id": "m",
        "opened_at": AT,
        "last_at": AT,
        "closed_at": None,
    }
    opened = cloud_events.alert_event(alert, source=SOURCE, told="opened")
    closed = cloud_events.alert_event({**alert, "closed_at": AT}, source=SOURCE, told="closed")
    assert (opened["type"], closed["type"]) == ("io.corral.alert.opened", "io.corral.alert.closed")
    assert opened["id"] != closed["id"] and opened["subject"] == "machine/m"
    assert opened["data"]["kind"] == "machine_down" and opened["data"]["closed_at"] is None
