"""Workspaces: what they may be called, and when one may go (spec 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain.errors import Refusal
from corral.domain.ids import display_name, slug

NAMED = 5
"""How many workloads a refusal names."""
LISTED = 100
"""How many of the workspaces that something affects are named; the rest are counted."""


@dataclass(frozen=True)
class Some:
    """Workspaces, by short name: the first of them, and how many more there are."""

    named: Sequence[str]
    left_out: int


def workspace_slug(text: str) -> str:
    """Return a workspace's short name. Errors: `INVALID_NAME`."""
    return slug(text, "short name of a workspace")


def workspace_name(text: str) -> str:
    """Return a workspace's shown name. Errors: `INVALID_NAME`."""
    return display_name(text, "name of a workspace")


def check_nothing_lives(workloads: Sequence[str], what: str) -> None:
    """Refuse to take away what live workloads (their names) need. Errors: `CONFLICT`."""
    if workloads:
        named = ", ".join(workloads[:NAMED]) + (", …" if len(workloads) > NAMED else "")
        raise Refusal(
            "CONFLICT",
            f"{what} has live workloads ({named}). Terminate them first.",
            workloads=list(workloads[:NAMED]),
        )
