"""The door every route of people goes through: authenticates, authorises, opens the transaction.

A route asks for a `Door` and never sees a credential. Which rule applies is looked up in
`domain/permissions.ROUTES` by method and route template, so no route can forget it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from corral.domain.errors import Refusal, not_found
from corral.domain.events import Entry, Subject
from corral.domain.ids import shown
from corral.domain.permissions import ROUTES, Rule
from corral.domain.secrets import hashed
from corral.server.errors import request_id_of
from corral.store.engine import Database
from corral.store.transaction import Actor, Tx
from corral.usecases import idempotency
from corral.usecases.break_glass import Looked, Traces, record_use
from corral.usecases.context import Context
from corral.usecases.denials import Denials, worth_recording
from corral.usecases.identity import Caller, Place, enter

V = TypeVar("V", bound=BaseModel)
ADDRESS_MAX = 64
"""Characters kept of an address: behind a proxy, what a client claims may be of any length."""


class Door:
    """One request of a person or program."""

    def __init__(self, request: HTTPConnection, template: str = "") -> None:
        """`template` is needed where the framework does not say which route it matched (plain WebSocket routes)."""
        self._request = request
        self._db: Database = request.app.state.db
        method = request.scope.get("method", "WS")
        template = template or request.scope["route"].path
        self.rule: Rule = ROUTES[(method, template)]
        self._template = f"{method} {template}"
        self.caller = Caller(
            bearer(request),
            request.client.host[:ADDRESS_MAX] if request.client else "",
            str(request.scope["state"]["request_id"]),
        )
        self.place = Place(_name(request, "org"), _name(request, "ws"))
        self._route = f"{method} {request.url.path}"

    @property
    def asker(self) -> str:
        """Who asks, as far as it is known before the door is entered: a credential, or else an address."""
        return hashed(self.caller.token).hex() if self.caller.token else self.caller.address

    @contextmanager
    def read(self) -> Iterator[Context]:
        """Enter, in a transaction that only reads.

        What an operator looks at under break-glass stands in the tenant's audit before it is read.
        """
        with self.audited():
            with self._db.read() as tx:
                ctx = self._enter(tx, self.rule)
                if not ctx.look:
                    yield ctx
                    return
            self._trace(ctx)
            with self._db.read() as tx:
                yield self._enter(tx, self.rule)

    @contextmanager
    def write(self) -> Iterator[Context]:
        """Enter, in a transaction that commits at the end."""
        with self.audited(), self._db.write() as tx:
            yield self._enter(tx, replace(self.rule, look=""))

    def user_id(self) -> str:
        """Enter only to learn who it is."""
        with self.read() as ctx:
            return ctx.user.id

    def _trace(self, seen: Context) -> None:
        traces: Traces = self._request.app.state.traces
        with traces.writing:
            looked = self._looked()
            if not traces.due(seen.look, looked.path, seen.now):
                return
            with self._db.write() as tx:
                record_use(self._enter(tx, self.rule), looked)
            traces.written(seen.look, looked.path, seen.now)

    def _looked(self) -> Looked:
        """Return what is asked for: by the path, and by the filters that name a thing."""
        path, query = self._request.path_params, self._request.query_params
        filters = {name: query[name] for name in ("workspace", "cluster", "machine", "workload") if name in query}
        return Looked(
            self.rule.look,
            f"{self._request.scope['path']}{'?' if filters else ''}{urlencode(filters)}",
            workspace=path.get("ws", filters.get("workspace")),
            cluster=path.get("cluster", filters.get("cluster")),
            machine=path.get("node", filters.get("machine")),
            workload=path.get("name", filters.get("workload")),
        )

    def _enter(self, tx: Tx, rule: Rule) -> Context:
        ctx = enter(tx, self.caller, rule, self.place)
        self._request.app.state.last_used.note(ctx.token_id, ctx.now)
        self.check_request()
        return ctx

    def check_request(self) -> None:
        """Refuse what no route can mean: a NUL in the path or query, a query parameter that the route does not take.

        Every way in does this; a route that enters elsewhere (the placement worker) calls it itself.
        Errors: `NOT_FOUND`, `INVALID_REQUEST`.
        """
        # PostgreSQL keeps no NUL and would not even look for one.
        if any("\0" in str(value) for value in self._request.path_params.values()):
            raise not_found()
        known = self._parameters()
        for name, value in self._request.query_params.multi_items():
            if "\0" in name + value:
                raise Refusal("INVALID_REQUEST", f"{shown(name)}: has a NUL character. Leave it out.", field="query")
            if known is not None and name not in known:
                # A filter that is mistyped must not list everything, nor a mistyped dry_run change something.
                may = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
                raise Refusal(
                    "INVALID_REQUEST", f"{shown(name)} is no query parameter here: {may}. Leave it out.", field="query"
                )

    def _parameters(self) -> frozenset[str] | None:
        """Return the names of the query parameters that the route takes (None: a plain route, which reads its own)."""
        route = self._request.scope.get("route")
        if not isinstance(route, APIRoute):
            return None
        if self._template not in _PARAMETERS:
            _PARAMETERS[self._template] = frozenset(_query_parameters(route.dependant))
        return _PARAMETERS[self._template]

    def key(self, body: BaseModel | None) -> idempotency.Key | None:
        """Return the request's `Idempotency-Key` (None: it has none). Errors: `INVALID_REQUEST`."""
        text = self._request.headers.get("idempotency-key")
        if text is None:
            return None
        if not 1 <= len(text) <= 255 or not text.isprintable():
            raise Refusal(
                "INVALID_REQUEST", "Idempotency-Key: use 1 to 255 printable characters.", field="Idempotency-Key"
            )
        return idempotency.Key(text, self._route, body.model_dump_json().encode() if body else b"")

    def create(self, body: BaseModel | None, make: Callable[[Context], V], status: int = 201) -> JSONResponse:
        """Make something under the request's `Idempotency-Key`, if it has one.

        A view that holds a secret names its fields in the class variable `SECRETS`: a replay
        has null there.
        """
        key = self.key(body)
        try:
            return self._created(key, make, status)
        except idempotency.Racing:
            return self._created(key, make, status)  # what came first is committed now: this finds its answer

    def _created(self, key: idempotency.Key | None, make: Callable[[Context], V], status: int) -> JSONResponse:
        with self.write() as ctx:
            stored = idempotency.recall(ctx, key) if key else None
            if stored is not None:
                return JSONResponse(stored.answer, stored.status)
            view = make(ctx)
            answer = view.model_dump(mode="json")
            if key is not None:
                idempotency.remember(ctx, key, status, without_secrets(view, answer))
        return JSONResponse(answer, status)

    @contextmanager
    def audited(self) -> Iterator[None]:
        """Commit an entry of its own for a refused act worth knowing (spec 10, "Events, audit")."""
        try:
            yield
        except Refusal as refusal:
            self.refused(refusal)
            raise

    def refused(self, refusal: Refusal) -> None:
        """Audit a refusal, if it is worth it."""
        if refusal.code != "FORBIDDEN":
            return
        denials: Denials = self._request.app.state.denials
        with self._db.read() as tx:
            who, now = worth_recording(tx, self.caller, self.place), tx.now
        left_out = denials.left_out(who.user.id, self._template, now) if who is not None else None
        if who is None or left_out is None:
            return
        data = {"route": self._route, "why": refusal.message, **({"left_out": left_out} if left_out else {})}
        with self._db.write() as tx:
            actor = Actor("user", who.user.id, who.user.login, self.caller.address, self.caller.request_id)
            tx.record(Entry("access.denied", Subject(org=who.org_id), data), actor)


# Async though they wait for nothing: the framework takes a plain function to a worker thread, which costs more than it.


async def enter_door(request: Request) -> Door:
    return Door(request)


AtDoor = Annotated[Door, Depends(enter_door)]

_PARAMETERS: dict[str, frozenset[str]] = {}
"""Of each route that was asked, by method and template."""


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_parameters(inner)


def without_secrets(view: BaseModel, answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, **dict.fromkeys(getattr(view, "SECRETS", ()))}


def _name(request: HTTPConnection, parameter: str) -> str | None:
    """Return a name from the path. Nothing is called "", so one that no name can be is found nowhere."""
    text: str | None = request.path_params.get(parameter)
    return "" if text is not None and "\0" in text else text


def bearer(request: HTTPConnection) -> str | None:
    """Return the credential that a request brings, unchecked."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


@dataclass(frozen=True)
class Paging:
    """How long a page is, and the key it comes after (None: it is the first)."""

    size: int
    after: str | None

    def sequence(self) -> int | None:
        """Return `after` in a list that is sorted by the journal's sequence. Errors: `INVALID_REQUEST`."""
        if self.after is None:
            return None
        if not (self.after.isascii() and self.after.isdigit() and len(self.after) < 19):
            raise not_of_this_list()
        return int(self.after)

    def keys(self, kinds: Sequence[type[str] | type[int]]) -> tuple[str | int, ...] | None:
        """Return `after` in a list that is sorted by several keys, each text or a number. Errors: `INVALID_REQUEST`."""
        if self.after is None:
            return None
        try:
            found = msgspec.json.decode(self.after, type=list[str | int])
        except msgspec.DecodeError:
            raise not_of_this_list() from None
        if [type(key) for key in found] != list(kinds) or not all(_askable(key) for key in found):
            raise not_of_this_list()
        return tuple(found)


def _askable(key: str | int) -> bool:
    """Return whether a database can be asked for this key."""
    return "\0" not in key if isinstance(key, str) else abs(key) < 2**31


async def paging(
    page_size: Annotated[int, Query(ge=1, le=1000)] = 100, page_token: Annotated[str | None, Query()] = None
) -> Paging:
    """Read `page_size` (1 to 1000, default 100) and the opaque `page_token` of a list."""
    return Paging(page_size, read_page_token(page_token) if page_token else None)


Page = Annotated[Paging, Depends(paging)]


def page_token(last_key: str) -> str:
    """Return the opaque token of the page after `last_key`."""
    return base64.urlsafe_b64encode(last_key.encode()).decode().rstrip("=")


def keys_token(last_keys: Sequence[str | int]) -> str:
    """Return the opaque token of the page after `last_keys`, for `Paging.keys`."""
    return page_token(msgspec.json.encode(last_keys).decode())


def read_page_token(token: str) -> str:
    try:
        key = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        key = ""
    if not key or "\0" in key:
        raise not_of_this_list()
    return key


def not_of_this_list() -> Refusal:
    """Return how a list refuses a page token that is not its own."""
    return Refusal(
        "INVALID_REQUEST", "page_token: not one that this list gave. Start from the first page.", field="page_token"
    )


__all__ = [
    "AtDoor",
    "Door",
    "Page",
    "Paging",
    "enter_door",
    "keys_token",
    "not_of_this_list",
    "page_token",
    "request_id_of",
    "without_secrets",
]
