"""Events and audit: listed with filters, and events streamed live by SSE with `Last-Event-ID`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel
from starlette.concurrency import run_in_threadpool

from corral.domain.errors import Refusal
from corral.server.door import AtDoor, Door, Page, page_token
from corral.server.live import Live
from corral.store.transaction import Row, Scope
from corral.usecases import journal
from corral.usecases.journal import Cursor, Filter

router = APIRouter()

HEARTBEAT_S = 15.0
BATCH = 500


class EntryView(BaseModel):
    """One journal entry. `id` is the cursor that `Last-Event-ID` takes."""

    id: str
    seq: int
    at: str
    type: str
    actor: str
    actor_kind: str
    address: str
    request_id: str
    cluster_id: str | None
    workspace_id: str | None
    machine_id: str | None
    workload_id: str | None
    data: dict[str, Any]


class EntryList(BaseModel):
    items: list[EntryView]
    next_page_token: str | None


class Filters:
    """The filters of both lists and of the stream. Times are RFC 3339 with an offset; types may end in `.*`."""

    def __init__(
        self,
        type: Annotated[list[str] | None, Query(max_length=50)] = None,
        workspace: str | None = None,
        cluster: str | None = None,
        machine: str | None = None,
        workload: str | None = None,
        actor: str | None = None,
        since: AwareDatetime | None = None,
        until: AwareDatetime | None = None,
    ) -> None:
        self._given = {
            "types": tuple(type or ()),
            "workspace": workspace,
            "cluster": cluster,
            "machine": machine,
            "workload": workload,
            "actor": actor,
            "since": since,
            "until": until,
        }

    def query(self, view: str) -> journal.Query:
        return journal.Query(view=view, **self._given)  # type: ignore[arg-type]  # the names are the same


AskFilters = Annotated[Filters, Depends(Filters)]


@router.get("/api/v1/orgs/{org}/events")
def list_events(org: str, filters: AskFilters, page: Page, door: AtDoor) -> EntryList:
    """List what happened to machines and workloads, newest first."""
    return _listed("event", filters, page, door)


@router.get("/api/v1/orgs/{org}/audit")
def list_audit(org: str, filters: AskFilters, page: Page, door: AtDoor) -> EntryList:
    """List who did what, newest first."""
    return _listed("audit", filters, page, door)


def _listed(view: str, filters: Filters, page: Page, door: Door) -> EntryList:
    before = _sequence(page.after)
    with door.read() as ctx:
        want = journal.resolve(ctx, filters.query(view))
        rows = journal.show(ctx, want, before, page.size + 1)
        incarnation = journal.incarnation(ctx)
    shown = rows[: page.size]
    more = len(rows) > page.size
    return EntryList(
        items=[EntryView(**entry(row, incarnation)) for row in shown],
        next_page_token=page_token(str(shown[-1]["seq"])) if more else None,
    )


def _sequence(after: str | None) -> int | None:
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise Refusal("INVALID_REQUEST", "page_token: not one that this list gave.", field="page_token")
    return int(after)


@router.get("/api/v1/orgs/{org}/events/stream")
async def stream_events(
    request: Request, org: str, filters: AskFilters, door: AtDoor, last_event_id: str | None = None
) -> StreamingResponse:
    """Stream events as they are committed (text/event-stream).

    Begins after `Last-Event-ID` (header, or the query `last_event_id`), else with what comes
    next. An id of a restored or older journal answers the event `reset`: list again.
    """
    scope, want = await run_in_threadpool(_resolve, door, filters)
    live: Live = request.app.state.live
    start, reset = _start(live, request.headers.get("last-event-id") or last_event_id)
    follow = _Follow(door, filters, live, live.incarnation)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(follow.run(scope, want, start, reset), media_type="text/event-stream", headers=headers)


def _resolve(door: Door, filters: Filters) -> tuple[Scope, Filter]:
    with door.read() as ctx:
        return ctx.scope, journal.resolve(ctx, filters.query("event"))


def _start(live: Live, text: str | None) -> tuple[int, bool]:
    """Return the sequence to begin after, and whether the listener must list again first."""
    if not text:
        return live.seq, False
    cursor = journal.parse_cursor(text)
    known = cursor is not None and cursor.incarnation == live.incarnation and cursor.seq <= live.seq
    return (cursor.seq, False) if known and cursor is not None else (live.seq, True)


class _Follow:
    """One listener: its filter, its right to listen, and its place in the journal."""

    def __init__(self, door: Door, filters: Filters, live: Live, incarnation: str) -> None:
        self._door, self._filters, self._live, self._incarnation = door, filters, live, incarnation

    async def run(self, scope: Scope, want: Filter, seq: int, reset: bool) -> AsyncIterator[bytes]:
        first = "event: reset" if reset else ": begin"
        yield f"retry: 2000\nid: {self._incarnation}.{seq}\n{first}\ndata: {{}}\n\n".encode()
        rights = self._live.rights
        while not self._live.stopping:
            woken = await self._live.changed(seq, HEARTBEAT_S)
            if not woken or rights != self._live.rights:
                # Whether this person may still listen, and to what. An expired token wakes nobody: look now and then.
                rights = self._live.rights
                try:
                    scope, want = await run_in_threadpool(_resolve, self._door, self._filters)
                except Refusal:
                    return
            if not woken:
                yield b": still here\n\n"
                continue
            rows, seq = await self._next(scope, want, seq)
            if rows:
                yield b"".join(self._frame(row) for row in rows)

    async def _next(self, scope: Scope, want: Filter, seq: int) -> tuple[list[Row], int]:
        """Return what matches after `seq`, and how far that reaches."""
        recent = self._live.recent(seq, BATCH)
        if recent is not None:
            return [row for row in recent if journal.sees(scope, want, row)], recent[-1]["seq"] if recent else seq
        until = self._live.seq
        rows = await run_in_threadpool(self._older, want, seq, until)
        return rows, rows[-1]["seq"] if len(rows) == BATCH else until

    def _older(self, want: Filter, seq: int, until: int) -> list[Row]:
        with self._door.read() as ctx:
            return list(journal.between(ctx, want, seq, until, BATCH))

    def _frame(self, row: Row) -> bytes:
        view = entry(row, self._incarnation)
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (
            view["id"].encode(),
            row["type"].encode(),
            msgspec.json.encode(view),
        )


def entry(row: Row, incarnation: str) -> dict[str, Any]:
    """Return an entry as people see it."""
    at: datetime = row["at"]
    return {
        "id": str(Cursor(incarnation, row["seq"])),
        "seq": row["seq"],
        "at": at.isoformat().replace("+00:00", "Z"),
        "type": row["type"],
        "actor": row["actor_name"],
        "actor_kind": row["actor_kind"],
        "address": row["address"],
        "request_id": row["request_id"],
        "cluster_id": row["cluster_id"],
        "workspace_id": row["workspace_id"],
        "machine_id": row["machine_id"],
        "workload_id": row["workload_id"],
        "data": row["data"],
    }
