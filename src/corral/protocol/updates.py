"""Updating the agent (spec 40, "Update"): what it is asked, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class UpdateState(str, Enum):
    """Where the agent stands with an `Update`. Done is no state: reports are then of the new release, without any."""

    RUNNING = "running"  # `message` says what is going on, or for what it waits
    FAILED = "failed"  # the old release goes on; not tried again for the same ask


@dataclass(frozen=True)
class UpdateReport:
    ask: int
    """Of the `Update` that this is about."""
    state: UpdateState
    message: str = ""
    """For people."""


@dataclass(frozen=True)
class Update:
    """Update the agent to the release that the site serves; said again to each session until the agent has answered."""

    ask: int
    """Counts the asks of this machine: one that failed is tried again when another number asks."""
    release: str
    sha256: str
    """Of the agent's file, hex."""
    size: int
    """Bytes."""
    path: str
    """Path on the site's own address of the folder that holds the agent's file and its SHA256SUMS."""
