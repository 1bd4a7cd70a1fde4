"""Tests of webhooks and alert rules: a delivery like any other, which says that it is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corral.domain import cloud_events
from corral.domain.errors import Refusal
from corral.store import deliveries
from corral.usecases.context import Context, new_id


def put_event(ctx: Context, webhook_id: str, subject: str, data: Mapping[str, Any], site_url: str) -> str:
    """Put a test event out to a webhook; return the delivery's id. Errors: `RATE_LIMITED` (one is on its way)."""
    id, source = new_id(ctx.now), cloud_events.source(site_url, ctx.org.slug)
    attributes = {"id": id, "source": source, "type": f"{cloud_events.PREFIX}test"}
    event = cloud_events.envelope(attributes, ctx.now, subject, data)
    return _put(ctx, {"id": id, "target_id": webhook_id, "webhook_id": webhook_id, "rule_id": None}, event)


def put_message(ctx: Context, rule_id: str, title: str, text: str) -> str:
    """Put a test message out to a rule's own target; return the delivery's id. Errors: as of `put_event`."""
    to = {"id": new_id(ctx.now), "target_id": rule_id, "webhook_id": None, "rule_id": rule_id}
    return _put(ctx, to, {"title": title, "text": text})


def _put(ctx: Context, to: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    if deliveries.test_waits(ctx.tx, to["target_id"]):
        raise Refusal("RATE_LIMITED", "A test is still on its way there. Look how it goes first.", retry_after_s=5)
    what = {"org_id": ctx.org.id, "type": "test", "alert_id": None, "event_seq": None}
    deliveries.add(ctx.tx, [{**what, **to, "body": json.dumps(body, ensure_ascii=False)}])
    return str(to["id"])
