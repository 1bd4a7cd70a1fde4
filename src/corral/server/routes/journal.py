"""Events and audit: listed with filters, and events streamed live by SSE with `Last-Event-ID`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from corral.domain.errors import Refusal
from corral.server import entries
from corral.server.door import AtDoor, Door, Page, page_token
from corral.server.live import Listener, Live
from corral.store.transaction import Row, Scope
from corral.usecases import journal
from corral.usecases.journal import Filter

router = APIRouter()

HEARTBEAT_S = 15.0
BATCH = 500


class EventView(BaseModel):
    """One journal entry. `id` is the cursor that `Last-Event-ID` takes."""

    id: str
    seq: int
    at: str
    type: str
    actor: str
    actor_kind: str
    cluster_id: str | None
    workspace_id: str | None
    machine_id: str | None
    workload_id: str | None
    data: dict[str, Any]


class OrgAuditView(EventView):
    """An entry with where it came from: the address, and the request's id."""

    address: str
    request_id: str


class EventList(BaseModel):
    items: list[EventView]
    next_page_token: str | None


class OrgAuditList(BaseModel):
    items: list[OrgAuditView]
    next_page_token: str | None


class Filters:
    """The filters of both lists and of the stream, as they were given."""

    def __init__(self, **given: Any) -> None:
        self._given = given

    def query(self, view: str) -> journal.Query:
        return journal.Query(view=view, **self._given)


# Async though it waits for nothing: a plain one is called in a thread, and people may have taken up all of them.
async def read_filters(
    type: Annotated[list[str] | None, Query(max_length=50)] = None,
    workspace: str | None = None,
    cluster: str | None = None,
    machine: str | None = None,
    workload: str | None = None,
    actor: str | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> Filters:
    """Times are RFC 3339 with an offset; types may end in `.*`."""
    return Filters(
        types=tuple(type or ()),
        workspace=workspace,
        cluster=cluster,
        machine=machine,
        workload=workload,
        actor=actor,
        since=since,
        until=until,
    )


AskFilters = Annotated[Filters, Depends(read_filters)]


@router.get("/api/v1/orgs/{org}/events")
def list_events(org: str, filters: AskFilters, page: Page, door: AtDoor) -> EventList:
    """List what happened to machines and workloads, newest first."""
    rows, incarnation, more = _listed("event", filters, page, door)
    return EventList(items=[EventView(**entries.event(row, incarnation)) for row in rows], next_page_token=more)


@router.get("/api/v1/orgs/{org}/audit")
def list_audit(org: str, filters: AskFilters, page: Page, door: AtDoor) -> OrgAuditList:
    """List who did what, newest first."""
    rows, incarnation, more = _listed("audit", filters, page, door)
    return OrgAuditList(items=[OrgAuditView(**entries.audit(row, incarnation)) for row in rows], next_page_token=more)


def _listed(view: str, filters: Filters, page: Page, door: Door) -> tuple[Sequence[Row], str, str | None]:
    """Return a page's rows, the site's incarnation, and the token of the next page."""
    before = page.sequence()
    with door.read() as ctx:
        want = journal.resolve(ctx, filters.query(view))
        rows = journal.show(ctx, want, before, page.size + 1)
        incarnation = journal.incarnation(ctx)
    shown = rows[: page.size]
    return shown, incarnation, page_token(str(shown[-1]["seq"])) if len(rows) > page.size else None


@router.get("/api/v1/orgs/{org}/events/stream")
async def stream_events(
    request: Request, org: str, filters: AskFilters, door: AtDoor, last_event_id: str | None = None
) -> StreamingResponse:
    """Stream events as they are committed (text/event-stream).

    Begins after `Last-Event-ID` (header, or the query `last_event_id`), else with what comes
    next. An id of a restored or older journal answers the event `reset`: list again.
    """
    live: Live = request.app.state.live
    rights = live.rights  # before: a right lost while this looks is looked at again
    ears = await live.threads.run_for(door.asker, lambda: _resolve(door, filters))
    live.check_room(ears.user_id)
    start, reset = _start(live, ears.floor, request.headers.get("last-event-id") or last_event_id)
    return _Events(_Follow(door, filters, live, ears), rights, start, reset)


@dataclass(frozen=True)
class _Ears:
    """Who listens, and to what."""

    user_id: str
    scope: Scope
    want: Filter
    floor: int
    """Events up to this sequence are not kept any more."""


def _resolve(door: Door, filters: Filters) -> _Ears:
    with door.read() as ctx:
        return _Ears(ctx.user.id, ctx.scope, journal.resolve(ctx, filters.query("event")), journal.floor(ctx))


def _start(live: Live, floor: int, text: str | None) -> tuple[int, bool]:
    """Return the sequence to begin after, and whether the listener must list again first."""
    if not text:
        return live.seq, False
    cursor = journal.parse_cursor(text)
    known = cursor is not None and cursor.incarnation == live.incarnation and floor <= cursor.seq <= live.seq
    return (cursor.seq, False) if known and cursor is not None else (live.seq, True)


class _Follow:
    """One listener: its filter, its right to listen, and its place in the journal."""

    def __init__(self, door: Door, filters: Filters, live: Live, ears: _Ears) -> None:
        self._door, self._filters, self._ears = door, filters, ears
        self.live, self.user_id = live, ears.user_id

    async def run(self, listener: Listener, seq: int, reset: bool) -> AsyncIterator[bytes]:
        # Without data no event is dispatched, but the id is kept: who comes back begins there.
        first = "event: reset\ndata: {}" if reset else ": begin"
        yield f"retry: 2000\nid: {self.live.incarnation}.{seq}\n{first}\n\n".encode()
        beat_at = monotonic() + HEARTBEAT_S
        while not self.live.stopping:
            woken = await self.live.changed(seq, max(0.0, beat_at - monotonic()))
            # By time, not by news: others' news wake this listener too, and may never leave it a quiet moment.
            beat = monotonic() >= beat_at
            if beat or listener.stale:
                # Whether this person may still listen, and to what. An expired token wakes nobody: look now and then.
                listener.stale = False
                try:
                    self._ears = await self.live.judging.run(lambda: _resolve(self._door, self._filters))
                except Refusal:
                    return
            if beat:
                beat_at = monotonic() + HEARTBEAT_S
                yield b": still here\n\n"
            if not woken:
                continue
            frames, seq = await self._next(seq)
            if frames:
                yield b"".join(frames)

    async def _next(self, seq: int) -> tuple[list[bytes], int]:
        """Return what matches after `seq`, and how far that reaches."""
        recent = self.live.recent(seq, BATCH)
        if recent is not None:
            kept, reach = recent
            return [one.frame for one in kept if journal.sees(self._ears.scope, self._ears.want, one.row)], reach
        until = self.live.seq
        rows = await self.live.threads.run_for(self._door.asker, lambda: self._older(seq, until))
        frames = [entries.frame(row, self.live.incarnation) for row in rows]
        return frames, rows[-1]["seq"] if len(rows) == BATCH else until

    def _older(self, seq: int, until: int) -> Sequence[Row]:
        with self._door.read() as ctx:
            return journal.between(ctx, self._ears.want, seq, until, BATCH)


class _Events(StreamingResponse):
    """An event stream; its person counts as listening until it ends, however that is."""

    def __init__(self, follow: _Follow, rights: int, start: int, reset: bool) -> None:
        self._follow, self._rights, self._start, self._reset = follow, rights, start, reset
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(iter(()), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        with self._follow.live.listening(self._follow.user_id, self._rights) as listener:
            self.body_iterator = self._follow.run(listener, self._start, self._reset)
            await super().__call__(scope, receive, send)
