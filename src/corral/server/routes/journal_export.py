"""Events and audit as a file: NDJSON or CSV, oldest first, as the lists would give them (spec 10, "Events, audit")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from corral.server import csv_cells, entries
from corral.server.door import AtDoor, Door
from corral.server.places import Places
from corral.server.routes.journal import AskFilters, Filters
from corral.store.transaction import Row
from corral.usecases import journal

router = APIRouter()

BATCH = 1_000
NDJSON = "application/x-ndjson"
_EVENT_COLUMNS = (
    "id",
    "at",
    "type",
    "actor",
    "actor_kind",
    "cluster_id",
    "workspace_id",
    "machine_id",
    "workload_id",
    "data",
)
_AUDIT_COLUMNS = (*_EVENT_COLUMNS, "address", "request_id")
View = Callable[[Row, str], dict[str, Any]]


class Format(str, Enum):
    NDJSON = "ndjson"
    CSV = "csv"


@router.get("/api/v1/orgs/{org}/events/export", response_class=StreamingResponse)
def export_events(
    request: Request, org: str, filters: AskFilters, door: AtDoor, format: Format = Format.NDJSON
) -> StreamingResponse:
    """Stream all events that match and were there when this was asked, oldest first: a JSON object a line, or CSV."""
    return _export(request, door, filters, "event", format)


@router.get("/api/v1/orgs/{org}/audit/export", response_class=StreamingResponse)
def export_audit(
    request: Request, org: str, filters: AskFilters, door: AtDoor, format: Format = Format.NDJSON
) -> StreamingResponse:
    """Stream all audit entries that match and were there when this was asked, oldest first."""
    return _export(request, door, filters, "audit", format)


def _export(request: Request, door: Door, filters: Filters, view: str, format: Format) -> StreamingResponse:
    places: Places = request.app.state.exporting
    with door.read() as ctx:
        journal.resolve(ctx, filters.query(view))  # what is refused is refused before anything is sent
        user, until = ctx.user.id, journal.newest(ctx)
    places.take(user)
    media = NDJSON if format is Format.NDJSON else csv_cells.MEDIA_TYPE
    name = f"{'events' if view == 'event' else 'audit'}.{format.value}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return _Export(_lines(door, filters, view, format, until), lambda: places.give(user), media, headers)


class _Export(StreamingResponse):
    """Gives the person's place back when it ends, however that is."""

    def __init__(self, lines: Iterator[bytes], ended: Callable[[], None], media: str, headers: dict[str, str]) -> None:
        super().__init__(lines, media_type=media, headers=headers)
        self._ended = ended

    async def __call__(self, *asgi: Any) -> None:
        try:
            await super().__call__(*asgi)
        finally:
            self._ended()


def _lines(door: Door, filters: Filters, view: str, format: Format, until: int) -> Iterator[bytes]:
    """Yield the file in parts; who lost the right meanwhile is refused at the next part, and the file stays cut off."""
    show: View = entries.event if view == "event" else entries.audit
    columns = _EVENT_COLUMNS if view == "event" else _AUDIT_COLUMNS
    if format is Format.CSV:
        yield csv_cells.line(columns)
    after = 0
    while after < until:
        with door.read() as ctx:
            want = journal.resolve(ctx, filters.query(view))
            rows = journal.between(ctx, want, after, until, BATCH)
            incarnation = journal.incarnation(ctx)
        shown = [show(row, incarnation) for row in rows]
        yield b"".join(_line(one, columns, format) for one in shown)
        after = rows[-1]["seq"] if len(rows) == BATCH else until


def _line(one: Mapping[str, Any], columns: tuple[str, ...], format: Format) -> bytes:
    if format is Format.NDJSON:
        return msgspec.json.encode(one) + b"\n"
    return csv_cells.line(_cells(one, columns))


def _cells(one: Mapping[str, Any], columns: tuple[str, ...]) -> list[object]:
    return [msgspec.json.encode(one[name]).decode() if name == "data" else one[name] for name in columns]
