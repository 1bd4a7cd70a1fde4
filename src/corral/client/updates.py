"""Updating machines' agents: one, or all of a cluster that are behind, in stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from corral.client.decode import View, decode
from corral.client.machine_models import Machine, Running
from corral.client.transport import Transport, quoted

DRY_RUN = {"dry_run": "true"}


@dataclass(frozen=True, kw_only=True)
class UpdatePreview(View):
    """What an update of one machine would do; `running` goes on, `stops` is empty."""

    name: str
    before: str
    after: str
    running: list[Running] = field(default_factory=list)
    stops: list[Running] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stage(View):
    """How many machines of a stage are where."""

    name: str
    waiting: int = 0
    asked: int = 0
    done: int = 0
    failed: int = 0
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class UpdatedMachine(View):
    """`state`: waiting | asked | done | failed | left_out; `message`: what it works on, or why not."""

    name: str
    stage: int
    state: str
    message: str = ""
    release: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterUpdate(View):
    """An update of many. `state`: running | done | stopped | failed; `machines` is the first page of them.

    `id` None: nothing was started (a preview, or no machine to ask).
    """

    id: str | None
    release: str
    state: str
    stage: int = 0
    message: str = ""
    stages: list[Stage] = field(default_factory=list)
    by: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None
    machines: list[UpdatedMachine] = field(default_factory=list)
    next_page_token: str | None = None


class Updates:
    """Of one cluster."""

    def __init__(self, transport: Transport, cluster_path: str) -> None:
        self._transport = transport
        self._path = f"{cluster_path}/update-agents"
        self._nodes = f"{cluster_path}/nodes"

    def machine(self, name: str) -> Machine:
        """Ask a machine to update; its `update` says what becomes of it (None, not behind: there is nothing to do)."""
        return decode(Machine, self._transport.call("POST", self._node(name)))

    def would_update(self, name: str) -> UpdatePreview:
        """Say what `machine` would do; changes nothing."""
        return decode(UpdatePreview, self._transport.call("POST", self._node(name), params=DRY_RUN))

    def start(self) -> ClusterUpdate:
        """Begin to update all that are behind and Up, in stages. Errors: `CONFLICT` while another one goes on."""
        return decode(ClusterUpdate, self._transport.call("POST", self._path))

    def preview(self) -> Iterator[ClusterUpdate]:
        """Yield which machines `start` would ask in which stage, page by page; changes nothing."""
        yield from self._pages("POST", DRY_RUN)

    def progress(self) -> ClusterUpdate:
        """Return the newest one, with the first page of its machines. Errors: `NOT_FOUND` where there was none yet."""
        return decode(ClusterUpdate, self._transport.call("GET", self._path))

    def pages(self) -> Iterator[ClusterUpdate]:
        """Yield the newest one with each page of its machines. Errors: as of `progress`."""
        yield from self._pages("GET", {})

    def stop(self) -> ClusterUpdate:
        """Ask no more machines; those that were asked go on."""
        return decode(ClusterUpdate, self._transport.call("DELETE", self._path))

    def _pages(self, method: str, params: dict[str, str]) -> Iterator[ClusterUpdate]:
        token: str | None = None
        while True:
            given = {**params, "page_size": 200, "page_token": token}
            page = decode(ClusterUpdate, self._transport.call(method, self._path, params=given))
            yield page
            token = page.next_page_token
            if not token:
                return

    def _node(self, name: str) -> str:
        return f"{self._nodes}/{quoted(name)}/update"
