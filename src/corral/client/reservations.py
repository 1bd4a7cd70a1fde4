"""Reservations of a cluster's machines, and a machine's placement labels, as the SDK sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.client.decode import View, decode
from corral.client.errors import CorralError
from corral.client.machine_models import Running, Window
from corral.client.transport import Transport, quoted


@dataclass(frozen=True, kw_only=True)
class Pool(View):
    pool: str


@dataclass(frozen=True, kw_only=True)
class Reservation(View):
    """`nodes`: machines reserved by name; `machines`: how many it covers now. `workspaces` empty: for nobody.

    `state`: upcoming | active | past.
    """

    id: str
    start: datetime
    end: datetime
    state: str
    pool: Pool | None = None
    nodes: list[str] = field(default_factory=list)
    machines: int = 0
    workspaces: list[str] = field(default_factory=list)
    reason: str = ""
    created_by: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Work(View):
    """A workload on a covered machine. `must_end_by` None: it has no time limit."""

    machine: str
    workspace: str
    name: str
    kind: str
    state: str
    gpus: int = 0
    must_end_by: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Effect(View):
    """The machines covered now, the work that goes on into the window, the workspaces that are kept out."""

    machines: list[str]
    goes_on: list[Work]
    kept_out: list[str]
    machines_left_out: int = 0
    goes_on_left_out: int = 0
    kept_out_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class ReservationDetails(View):
    reservation: Reservation
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class Conflict(View):
    """Another reservation that has the same machines or pool for some of the time."""

    id: str
    start: datetime
    end: datetime
    workspaces: list[str]
    reason: str = ""
    pool: Pool | None = None
    machines: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ReservationPreview(View):
    """What a reservation would cover and change, and what stands against it."""

    start: datetime
    end: datetime
    effect: Effect
    conflicts: list[Conflict]


@dataclass(frozen=True, kw_only=True)
class PlacementLabels(View):
    pool: str = ""
    site: str = ""
    rack: str = ""
    fabric: str = ""


@dataclass(frozen=True, kw_only=True)
class Placement(View):
    """Labels before and after, who can use the machine then, and the work of those who no longer can: it stays."""

    name: str
    dry_run: bool
    before: PlacementLabels
    after: PlacementLabels
    workspaces_before: list[str]
    workspaces_after: list[str]
    stays: list[Running]
    workspaces_before_left_out: int = 0
    workspaces_after_left_out: int = 0
    reservations: list[Window] = field(default_factory=list)


class Reservations:
    """The reservations of one cluster. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, cluster_path: str) -> None:
        self._transport = transport
        self._path = f"{cluster_path}/reservations"

    def list(
        self, state: str | None = None, *, pool: str | None = None, machine: str | None = None
    ) -> Iterator[Reservation]:
        """Yield those that are not over, soonest first; `state`: upcoming | active | past (latest first)."""
        for item in self._transport.pages(self._path, {"state": state, "pool": pool, "machine": machine}):
            yield decode(Reservation, item)

    def show(self, id: str) -> ReservationDetails:
        return decode(ReservationDetails, self._transport.call("GET", f"{self._path}/{quoted(id)}"))

    def create(
        self,
        start: datetime,
        end: datetime,
        *,
        pool: str | None = None,
        nodes: Sequence[str] = (),
        workspaces: Sequence[str] = (),
        reason: str = "",
    ) -> Reservation:
        """Reserve machines by name, by pool, or both; without `workspaces` for nobody. Times need a time zone.

        Errors: `INVALID_RESERVATION`, `WORKSPACE_NOT_FOUND`, `NODE_NOT_FOUND`, `RESERVATION_CONFLICT`, …
        """
        body = _body(start, end, pool, nodes, {"workspaces": list(workspaces), "reason": reason})
        return decode(Reservation, self._transport.call("POST", self._path, body))

    def preview(
        self,
        start: datetime,
        end: datetime,
        *,
        pool: str | None = None,
        nodes: Sequence[str] = (),
        workspaces: Sequence[str] = (),
    ) -> ReservationPreview:
        """Say what a reservation would cover, whom it keeps out and what stands against it; changes nothing."""
        body = _body(start, end, pool, nodes, {"workspaces": list(workspaces)})
        answer = self._transport.call("POST", self._path, body, {"dry_run": "true"})
        return decode(ReservationPreview, answer)

    def remove(self, id: str) -> ReservationDetails | None:
        """Remove one; returns it as it was (None: it went with a try whose answer was lost)."""
        gone = self._transport.call("DELETE", f"{self._path}/{quoted(id)}")
        return None if gone is None else decode(ReservationDetails, gone)

    def would_remove(self, id: str) -> ReservationDetails:
        """Say what removing would let in; changes nothing."""
        answer = self._transport.call("DELETE", f"{self._path}/{quoted(id)}", params={"dry_run": "true"})
        return decode(ReservationDetails, answer)


def _body(
    start: datetime, end: datetime, pool: str | None, nodes: Sequence[str], more: dict[str, Any]
) -> dict[str, Any]:
    selected = {"pool": {"pool": pool} if pool is not None else None, "nodes": list(nodes) or None}
    return {
        "start": _time(start),
        "end": _time(end),
        **{key: value for key, value in selected.items() if value is not None},
        **more,
    }


def _time(moment: datetime) -> str:
    if moment.utcoffset() is None:
        raise CorralError("INVALID_REQUEST", f"{moment} has no time zone. Give one, such as datetime.timezone.utc.")
    return moment.isoformat()
