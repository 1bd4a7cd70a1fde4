"""Events and audit: lists, and the live stream that misses nothing across reconnects (`Last-Event-ID`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from corral.client.decode import decode
from corral.client.errors import CorralError
from corral.client.models import JournalEntry
from corral.client.transport import Transport, unreachable

RESET = "reset"
"""The type of the entry that says: the journal was restored or is too old; list again, then go on."""


@dataclass(frozen=True)
class Filter:
    """What to show; None and empty: no restriction. Times are RFC 3339; a type may end in `.*`."""

    types: Sequence[str] = ()
    workspace: str | None = None
    cluster: str | None = None
    machine: str | None = None
    workload: str | None = None
    actor: str | None = None
    since: str | None = None
    until: str | None = None

    def params(self) -> dict[str, Any]:
        names = ("workspace", "cluster", "machine", "workload", "actor", "since", "until")
        return {"type": list(self.types) or None, **{name: getattr(self, name) for name in names}}


EVERYTHING = Filter()


def entries(transport: Transport, path: str, want: Filter) -> Iterator[JournalEntry]:
    """Yield entries, newest first, page by page."""
    for item in transport.pages(path, want.params()):
        yield decode(JournalEntry, item)


def export(transport: Transport, path: str, want: Filter, format: str = "ndjson") -> Iterator[bytes]:
    """Yield a file of all entries that match, oldest first, in parts. `format`: ndjson | csv. Errors: `CorralError`."""
    try:
        with transport.stream(path, {**want.params(), "format": format}) as response:
            yield from response.iter_bytes()
    except httpx.TransportError as error:
        raise unreachable(transport.site.url, error) from error


def follow(transport: Transport, path: str, want: Filter, after: str | None = None) -> Iterator[JournalEntry]:
    """Yield events as they happen, for ever; reconnects where it broke off.

    Begins after the entry id `after`, else with what comes next. An entry of type `reset` says that
    what came between is unknown. Errors: `CorralError` when the site refuses, or is away for too long.
    """
    failures = 0
    while True:
        headers = {"Last-Event-ID": after} if after else {}
        try:
            with transport.stream(path, want.params(), headers) as response:
                for frame in frames(response.iter_lines()):
                    failures = 0
                    after = frame.id or after
                    if frame.event == RESET:
                        yield JournalEntry(id=after or "", seq=0, at=None, type=RESET)
                    elif frame.data and frame.event:
                        yield decode(JournalEntry, json.loads(frame.data))
        except httpx.TransportError as error:
            failures += 1
            if failures >= 10:
                raise unreachable(transport.site.url, error) from error
        except CorralError as error:
            failures += 1
            if error.status not in (429, 502, 503, 504) or failures >= 10:
                raise
        transport.wait(max(failures, 1))


@dataclass
class Frame:
    id: str = ""
    event: str = ""
    data: str = ""


def frames(lines: Iterator[str]) -> Iterator[Frame]:
    """Cut the lines of a text/event-stream into frames; comments are dropped."""
    frame = Frame()
    for line in lines:
        if not line:
            yield frame
            frame = Frame()
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            frame.data = f"{frame.data}\n{value}" if frame.data else value
        elif name in ("id", "event"):
            setattr(frame, name, value)
