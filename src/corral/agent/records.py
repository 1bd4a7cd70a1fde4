"""What an agent remembers of an update over its own end: that a release is on trial, or why it failed.

A release that failed is remembered and not tried again by itself (spec 40, "Update").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.agent.state import StateError, StateFolder

ON_TRIAL = "update.json"


@dataclass(frozen=True)
class Record:
    """Of the last update that came to a trial, or failed before it."""

    ask: int
    release: str
    message: str = ""
    """Why it failed; "": it is on trial."""

    def failed(self, message: str) -> Record:
        return replace(self, message=message)


def keep(state: StateFolder, record: Record) -> None:
    """Errors: `Unwritable`."""
    state.write(ON_TRIAL, record)


def forget(state: StateFolder) -> None:
    """Errors: `Unwritable`."""
    state.remove(ON_TRIAL)


def recall(state: StateFolder) -> Record | None:
    """Return what is remembered; a file that cannot be read back tells nothing, and must not keep work waiting."""
    try:
        return state.read(ON_TRIAL, Record)
    except StateError:
        return None
