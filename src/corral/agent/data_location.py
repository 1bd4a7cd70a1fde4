"""Keeps this machine's data location as the site wants it (spec 10, "Data location"; design decision 1).

Level-triggered: what was told last stands in the state folder, and is made, or looked at, again and again. Once
its folder was made it is never made anew by itself: one that is not there any more is a disk that is not there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from corral.agent.backoff import Doubling
from corral.agent.calls import Calls
from corral.agent.data_folder import DataFolder, DriveKey, FolderError, Place
from corral.agent.drivers.base import DriverError
from corral.agent.state import DATA_LOCATION, StateFolder, Unwritable
from corral.agent.waiting import set_or_after
from corral.protocol.data_location import DataLocation, DataLocationSeen, DataState
from corral.protocol.messages import DesiredAllocation

log = logging.getLogger(__name__)
CHECK_EVERY_S, RETRY_FIRST_S, RETRY_CAP_S = 10.0, 1.0, 60.0
ANSWERS_WITHIN_S = 30.0
"""A disk that takes longer is said to have failed; it is never asked a second time meanwhile."""
_NOBODY: frozenset[DriveKey] = frozenset()
NONE_HERE = "no data location is chosen for this machine: an admin can choose one"


@dataclass(frozen=True)
class Kept:
    """What the site wants, and whether the folder was made for it."""

    want: DataLocation
    made: bool = False

    @property
    def place(self) -> Place:
        return Place(self.want.path, self.want.mount)


@dataclass(frozen=True)
class _Stands:
    state: DataState
    message: str = ""
    copies: int = 0


class DataKeeper:
    """The data location of one machine. Lives in the loop; `drives` may be called from any thread."""

    def __init__(self, state: StateFolder, folder: DataFolder, calls: Calls) -> None:
        """Errors: `StateError` when what was told before cannot be read back."""
        self.changed: Callable[[], None] = lambda: None
        self.in_use: Callable[[], Collection[DriveKey]] = lambda: _NOBODY
        """Which drives live allocations have."""
        self._state, self._folder, self._calls = state, folder, calls
        self._kept = self._on_disk = state.read(DATA_LOCATION, Kept)
        self._stands: _Stands | None = None
        """None: not looked at yet."""
        self._wake = asyncio.Event()
        self._retry = Doubling(RETRY_FIRST_S, RETRY_CAP_S)
        self._asked: dict[Place, asyncio.Task[int]] = {}

    def seen(self) -> DataLocationSeen | None:
        """Return what is reported; None while there is none, or it was not looked at since this agent began."""
        kept, stands = self._kept, self._stands
        if kept is None or stands is None:
            return None
        return DataLocationSeen(kept.want.generation, stands.state, stands.message, stands.copies)

    def take(self, want: DataLocation | None) -> None:
        """Take what the site wants now; None says nothing. The same again has a failed one tried at once."""
        if want is None:
            return
        kept = self._kept
        if not want.path:
            self._kept = self._stands = None
        elif kept is None or kept.want != want:
            self._kept = _after(kept, want)
            if not self._kept.made:
                self._stands = _Stands(DataState.MAKING)
        self._retry.reset()
        self._wake.set()

    # -- converging ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Make it, and look whether it is still there, for ever."""
        while True:
            self._wake.clear()
            kept, stands = self._kept, None
            if kept is not None:
                stands = await self._look(kept)
            else:
                await self._forgotten()
            if not self._wake.is_set():  # else something else was told meanwhile
                self._say(stands)
            ready = stands is None or stands.state is DataState.READY
            await set_or_after(self._wake, CHECK_EVERY_S if ready else self._retry.next())

    def _say(self, stands: _Stands | None) -> None:
        if stands is None or stands.state is DataState.READY:
            self._retry.reset()
        if stands != self._stands:
            self._stands = stands
            self.changed()

    async def _forgotten(self) -> None:
        """None is wanted: forget what was before. Its folder stays."""
        if self._on_disk is not None:
            try:
                await self._calls.run(self._state.remove, DATA_LOCATION)
                self._on_disk = None
            except Unwritable as error:
                log.error("the data location cannot be forgotten: %s", error)

    async def _look(self, kept: Kept) -> _Stands:
        task = self._asked.get(kept.place)
        if task is None or task.done():
            task = asyncio.ensure_future(self._calls.run(self._round, kept, frozenset(self.in_use())))
            self._asked = {place: asked for place, asked in self._asked.items() if not asked.done()}
            self._asked[kept.place] = task
        done, _ = await asyncio.wait({task}, timeout=ANSWERS_WITHIN_S)
        if not done:
            return _Stands(DataState.FAILED, f"the disk at {kept.want.mount} does not answer")
        try:
            copies = task.result()
        except (FolderError, Unwritable) as error:
            return _Stands(DataState.FAILED, str(error)[:300])
        except Exception as error:
            # A bug here is the data location's trouble, not the agent's end.
            log.exception("looking at the data location failed unexpectedly")
            return _Stands(DataState.FAILED, f"unexpected {type(error).__name__} in the agent; see its log")
        if not kept.made and self._kept is kept:
            self._kept = replace(kept, made=True)
        return _Stands(DataState.READY, copies=copies)

    def _round(self, kept: Kept, in_use: Collection[DriveKey]) -> int:
        """Make the folder or check it; return how many drives are kept there. In a thread.

        What is wanted stands on disk before the folder is made, and that it was made, before that is said.
        """
        self._write(kept)
        if kept.made:
            self._folder.check(kept.place)
        else:
            self._folder.make(kept.place)
            self._write(replace(kept, made=True))
        return self._folder.copies(kept.place, in_use)

    def _write(self, kept: Kept) -> None:
        if kept != self._on_disk:
            self._state.write(DATA_LOCATION, kept)
            self._on_disk = kept

    # -- for the driver -----------------------------------------------------------------------

    def drives(self, want: DesiredAllocation, before: str) -> tuple[str, dict[str, Path]]:
        """Return where an allocation's drives are, by name, made if they are missing; and in which data location.

        `before`: the one of its first start ("" = this is it), where they stay. Errors: `DriverError`.
        """
        place = Place(*json.loads(before)) if before else self._place()
        try:
            found = {name: self._folder.drive(place, DriveKey(want.org, want.workspace, name)) for name in want.drives}
        except FolderError as error:
            raise DriverError(f"its drives cannot be mounted: {error}", retry=True) from error
        return json.dumps(list(place)), found

    def _place(self) -> Place:
        kept = self._kept
        if kept is None:
            raise DriverError(f"its drives cannot be mounted: {NONE_HERE}", retry=True)
        return kept.place


def _after(kept: Kept | None, want: DataLocation) -> Kept:
    """A folder that was made stays made while only how much may lie there is changed."""
    same = kept is not None and replace(kept.want, max_bytes=want.max_bytes) == want
    return Kept(want, made=kept is not None and kept.made and same)
