"""The data location (spec 10): the folder where a machine may keep drive copies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DataState(str, Enum):
    """Where the data location stands on its machine."""

    MAKING = "making"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class DataLocation:
    """The one folder where this machine may keep drive copies, for good until told otherwise."""

    generation: int
    """Another one: make the folder, also if it was made once and is not there any more."""
    path: str = ""
    """"": none is chosen."""
    mount: str = ""
    """Where the disk that it lies on is mounted: on no other one it may be made."""
    max_bytes: int = 0
    """0 = the disk is the limit."""


@dataclass(frozen=True)
class DataLocationSeen:
    generation: int
    state: DataState
    message: str = ""
    """Why it failed, for people; holds no changing number."""
    copies: int = 0
    """Drives that are kept there."""
