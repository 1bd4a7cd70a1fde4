"""Updating the agent (spec 40, "Update"): what it was asked for, and what becomes of it.

The release is fetched and tests itself while this one goes on; then this one ends its loop, and its process watches
over the new one's trial (`trial`). What fails leaves this release running and is remembered: it is tried again only
when another ask comes. Trouble on the way to the site is no failure: the download waits and is tried again, less
and less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import corral
from corral.agent import release
from corral.agent.backoff import Jitter
from corral.agent.calls import ThreadCalls
from corral.agent.records import Record, forget, keep, recall
from corral.agent.release import Refused, Unreachable
from corral.agent.site import Site
from corral.agent.state import StateError, StateFolder
from corral.protocol.updates import Update, UpdateReport, UpdateState

log = logging.getLogger(__name__)

AGAIN_BASE_S, AGAIN_CAP_S = 5.0, 600.0
CUT_SHORT = "the agent ended in the middle of the new release's trial"
NOT_INSTALLED = (
    "this agent is part of a Python installation: update it the way it was installed, "
    "or put it on with install.sh instead"
)


class Updater:
    """Belongs to the loop. `changed` is called when there is something new to report."""

    def __init__(self, state: StateFolder, site: Site, changed: Callable[[], None], *, on_trial: bool) -> None:
        self._state, self._site, self._changed = state, site, changed
        self._on_trial = on_trial
        self._program = release.installed()
        self._asked: Update | None = None
        self._due = asyncio.Event()
        self._ended = False
        self._again = Jitter(AGAIN_BASE_S, AGAIN_CAP_S)
        self._record = recall(state)
        self._report = self._begin(self._record)

    @property
    def report(self) -> UpdateReport | None:
        return self._report

    def want(self, update: Update) -> None:
        """Take what the site asks for; what is under way, has failed for this ask, or is there already, is no news."""
        known = self._record or self._asked
        is_known = known is not None and (known.ask, known.release) == (update.ask, update.release)
        if self._on_trial or update.release == corral.__version__ or is_known:
            return
        self._asked, self._record = update, None
        self._again.reset()
        self._due.set()

    async def run(self) -> None:
        """Return when a release is ready for its trial; errors are told, and never end the agent."""
        calls = ThreadCalls(1, "update")
        try:
            while not await self._next(calls):
                pass
        finally:
            self._ended = True
            calls.close()

    def _begin(self, record: Record | None) -> UpdateReport | None:
        """Return what to report at the start, from what the agent before this one left."""
        if self._on_trial:
            return None if record is None else UpdateReport(record.ask, UpdateState.RUNNING, "on trial")
        if self._program is not None:
            release.clear(self._program)
        if record is None or record.release == corral.__version__:
            self._record = None
            with contextlib.suppress(StateError):
                forget(self._state)
            return None
        return self._failed(record.failed(record.message or CUT_SHORT))

    async def _next(self, calls: ThreadCalls) -> bool:
        """Do what is due next; return whether a release is ready for its trial."""
        await self._due.wait()
        self._due.clear()
        update = self._asked
        if update is None:
            return False
        try:
            await self._prepare(update, calls)
        except Unreachable as error:
            delay = self._again.next(error.wait_s)
            log.warning("release %s cannot be downloaded now (%s); next try in %.0f s", update.release, error, delay)
            self._say(update, f"waits to be downloaded: {error}")
            asyncio.get_running_loop().call_later(delay, self._due.set)
        except Refused as error:
            self._refused(update, str(error))
        except Exception as error:
            log.exception("the update failed")
            self._refused(update, f"the update failed ({type(error).__name__}); the agent's log says more")
        else:
            return True
        return False

    async def _prepare(self, update: Update, calls: ThreadCalls) -> None:
        """Have the release beside this one, checked, and note that its trial begins.

        Errors: `Refused`, `Unreachable`.
        """
        if self._program is None:
            raise Refused(NOT_INSTALLED)
        log.info("updating from release %s to %s", corral.__version__, update.release)
        self._say(update, "downloads")
        want, new = _wanted(update), release.beside(self._program)
        await calls.run(release.fetch, self._site, want, new, lambda: self._ended)
        self._say(update, "tests itself")
        await calls.run(release.try_out, new, self._state.path, update.release)
        try:
            keep(self._state, Record(update.ask, update.release))
        except StateError as error:
            raise Refused(str(error)) from error

    def _refused(self, update: Update, why: str) -> None:
        log.error("release %s is not installed: %s", update.release, why)
        if self._asked is update:
            self._asked = None
        if self._program is not None:
            release.clear(self._program)
        self._report = self._failed(Record(update.ask, update.release, why))
        self._changed()

    def _failed(self, record: Record) -> UpdateReport:
        """Remember a failure, on disk too where that takes it."""
        self._record = record
        with contextlib.suppress(StateError):
            keep(self._state, record)
        return UpdateReport(record.ask, UpdateState.FAILED, record.message)

    def _say(self, update: Update, what: str) -> None:
        self._report = UpdateReport(update.ask, UpdateState.RUNNING, what)
        self._changed()


def _wanted(update: Update) -> release.Wanted:
    return release.Wanted(update.release, update.sha256, update.size, update.path)
