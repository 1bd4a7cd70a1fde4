"""Reservations: machines kept for some workspaces, or for nobody, over a window (spec 10, "Reservations")."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from corral.domain import reservations as rules
from corral.domain.errors import Refusal
from corral.domain.reservations import Given, State
from corral.server.bodies import DryRun
from corral.server.door import AtDoor, Page, Paging, keys_token, not_of_this_list
from corral.usecases import reservations as use

router = APIRouter()

_PATH = "/api/v1/orgs/{org}/clusters/{cluster}/reservations"
_TIME = {"type": "string", "format": "date-time"}


class ReservationBody(BaseModel):
    """Machines by name, by the pool they carry, or both. Times are RFC 3339 with any offset; no workspaces: nobody's
    work, maintenance."""

    model_config = ConfigDict(extra="forbid", strict=True)

    start: Annotated[str, Field(json_schema_extra=_TIME)]
    end: Annotated[str, Field(json_schema_extra=_TIME)]
    pool: Annotated[dict[str, Any] | None, Field(description='{"pool": NAME}; other labels are refused.')] = None
    nodes: list[str] | None = None
    workspaces: list[str] = []
    reason: str = ""

    def given(self) -> Given:
        return Given(self.start, self.end, self.pool, self.nodes or (), self.workspaces, self.reason)


class PoolView(BaseModel):
    pool: str


class ReservationView(BaseModel):
    """`nodes`: machines reserved by name; `machines`: how many it covers now, by pool too. `workspaces` empty: it is
    for nobody. `state` says where now is: before the window [start, end), in it, or after it."""

    id: str
    pool: PoolView | None
    nodes: list[str]
    machines: int
    start: datetime
    end: datetime
    workspaces: list[str]
    reason: str
    state: State
    created_by: str
    created_at: datetime


class Reservations(BaseModel):
    items: list[ReservationView]
    next_page_token: str | None


class WorkView(BaseModel):
    """A workload on a covered machine. `must_end_by`: when its time limit is over; null: it has none."""

    machine: str
    workspace: str
    name: str
    kind: str
    state: str
    gpus: int
    must_end_by: datetime | None


class EffectView(BaseModel):
    """`machines`: those covered now. `goes_on`: what runs there, is not of those it is for, and is not sure to end
    before the window: it is not ended. `kept_out`: workspaces that may use the machines and are not named. Members
    see what their workspaces do; the first are named, `…_left_out` counts the rest."""

    machines: list[str]
    machines_left_out: int
    goes_on: list[WorkView]
    goes_on_left_out: int
    kept_out: list[str]
    kept_out_left_out: int


class ReservationDetails(BaseModel):
    reservation: ReservationView
    effect: EffectView


class ConflictView(BaseModel):
    """Another reservation of the same machines or pool. `machines`: the first of those that both have."""

    id: str
    start: datetime
    end: datetime
    workspaces: list[str]
    reason: str
    pool: PoolView | None
    machines: list[str]


class ReservationPreview(BaseModel):
    """What the reservation would be, cover and change, and what stands against it."""

    dry_run: bool
    pool: PoolView | None
    nodes: list[str]
    start: datetime
    end: datetime
    workspaces: list[str]
    reason: str
    effect: EffectView
    conflicts: list[ConflictView]


class ReservationRemoved(BaseModel):
    """The reservation as it was. `effect.kept_out`: the workspaces that it kept out."""

    dry_run: bool
    reservation: ReservationView
    effect: EffectView


@router.get(_PATH)
def list_reservations(
    org: str,
    cluster: str,
    door: AtDoor,
    page: Page,
    state: Annotated[State | None, Query(description="Left out: those that are not over.")] = None,
    pool: Annotated[str | None, Query(description="Of this pool, or of a machine that carries it.")] = None,
    machine: Annotated[str | None, Query(description="Covering this machine.")] = None,
) -> Reservations:
    """The reservations that are not over, soonest first; with `state=past` those that are, latest first."""
    with door.read() as ctx:
        found = use.listed(ctx, cluster, use.Wanted(state, pool, machine), _after(page), page.size + 1)
    items = [_view(one) for one in found[: page.size]]
    token = keys_token([rules.utc(items[-1].start), items[-1].id]) if len(found) > page.size else None
    return Reservations(items=items, next_page_token=token)


@router.post(
    _PATH,
    status_code=201,
    response_model=ReservationView,
    responses={200: {"model": ReservationPreview, "description": "With `dry_run`: nothing was changed."}},
)
def create_reservation(
    org: str, cluster: str, body: ReservationBody, door: AtDoor, dry_run: DryRun = False
) -> JSONResponse:
    """Reserve machines from `start` to before `end`: no other work is placed there, and before it only work that is
    sure to end in time. What runs there goes on."""
    if dry_run:
        with door.read() as ctx:
            found = use.preview(ctx, cluster, body.given())
        return JSONResponse(_preview(found).model_dump(mode="json"))
    return door.create(body, lambda ctx: _view(use.create(ctx, cluster, body.given())))


@router.get(_PATH + "/{id}")
def show_reservation(org: str, cluster: str, id: str, door: AtDoor) -> ReservationDetails:
    """One reservation: the machines it covers now, and the work that was there before and goes on."""
    with door.read() as ctx:
        found = use.one(ctx, cluster, id)
    return ReservationDetails(reservation=_view(found.reservation), effect=_effect(found.effect))


@router.delete(_PATH + "/{id}")
def remove_reservation(org: str, cluster: str, id: str, door: AtDoor, dry_run: DryRun = False) -> ReservationRemoved:
    """Remove a reservation that is not over: what waited for its end is tried at once."""
    if dry_run:
        with door.read() as ctx:
            return _removed(use.remove(ctx, cluster, id, dry_run=True), dry_run=True)
    with door.write() as ctx:
        return _removed(use.remove(ctx, cluster, id), dry_run=False)


def _after(page: Paging) -> tuple[datetime, str] | None:
    keys = page.keys((str, str))
    if keys is None:
        return None
    try:
        return rules.moment(str(keys[0]), "page_token"), str(keys[1])
    except Refusal:
        raise not_of_this_list() from None


def _view(one: use.Reservation) -> ReservationView:
    return ReservationView(**{**vars(one), "pool": _pool(one.pool), "nodes": list(one.nodes)})


def _pool(name: str | None) -> PoolView | None:
    return None if name is None else PoolView(pool=name)


def _effect(effect: use.Effect) -> EffectView:
    return EffectView(**{**vars(effect), "goes_on": [WorkView(**vars(work)) for work in effect.goes_on]})


def _preview(found: use.Preview) -> ReservationPreview:
    conflicts = [ConflictView(**{**vars(one), "pool": _pool(one.pool)}) for one in found.conflicts]
    asked = {**vars(found.asked), "pool": _pool(found.asked.pool), "nodes": list(found.asked.nodes)}
    asked["workspaces"] = list(found.asked.workspaces)
    return ReservationPreview(dry_run=True, **asked, effect=_effect(found.effect), conflicts=conflicts)


def _removed(gone: use.Details, *, dry_run: bool) -> ReservationRemoved:
    return ReservationRemoved(dry_run=dry_run, reservation=_view(gone.reservation), effect=_effect(gone.effect))
