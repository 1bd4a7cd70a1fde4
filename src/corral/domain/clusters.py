"""Clusters: the hosted one's short name, and its machine limit (spec 10, "Kinds of cluster")."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from corral.domain.errors import Refusal
from corral.domain.ids import unique_name

HOSTED_SLUGS = ("default", "cloud", "hosted-cloud")
HOSTED_NAME = "Hosted cluster"
HOSTED_MACHINE_LIMIT = 10


def hosted_slug(taken: Collection[str]) -> str:
    """Return the short name that the hosted cluster gets in an organisation.

    Should all three be taken by dedicated clusters, the last one gets a number.
    """
    free = next((slug for slug in HOSTED_SLUGS if slug not in taken), None)
    return free or unique_name(HOSTED_SLUGS[-1], set(taken))


@dataclass(frozen=True)
class Room:
    """What of the hosted cluster's machine limit is taken."""

    limit: int
    machines: int
    """Enrolled ones."""
    tokens: int
    """Join tokens that are neither used, revoked nor expired."""


def check_room(room: Room) -> None:
    """Refuse one more join token when the limit is reached. Errors: `LIMIT_REACHED`."""
    if room.machines + room.tokens < room.limit:
        return
    raise Refusal(
        "LIMIT_REACHED",
        f"The hosted cluster takes {room.limit} machines of an organisation: {room.machines} are enrolled and "
        f"{room.tokens} join tokens wait to be used. Remove a machine, revoke an unused token, "
        "or ask the site's operator for a higher limit.",
        limit=room.limit,
        machines=room.machines,
        tokens=room.tokens,
    )
