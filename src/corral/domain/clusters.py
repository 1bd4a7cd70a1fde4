"""Clusters: the hosted one's short name and machine limit, and when one may be left or deleted (spec 10).

An organisation asks for a dedicated cluster by a request, which the operator answers once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown, unique_name

HOSTED_SLUGS = ("default", "cloud", "hosted-cloud")
HOSTED_NAME = "Hosted cluster"
HOSTED_MACHINE_LIMIT = 10
LIMIT_MAX = 1_000_000
TOKENS_NAMED = 100
"""Of the join tokens that are revoked with a cluster or an organisation, how many their audit entry names."""
NAMED = 20
"""Workspaces, machines or workloads that an answer names; the rest are counted."""
NOTE_MAX = 2000
OPEN_REQUESTS_MAX = 5
"""Of one organisation at a time."""


def hosted_slug(taken: Collection[str]) -> str:
    """Return the short name that the hosted cluster gets in an organisation.

    Should all three be taken by dedicated clusters, the last one gets a number.
    """
    free = next((slug for slug in HOSTED_SLUGS if slug not in taken), None)
    return free or unique_name(HOSTED_SLUGS[-1], set(taken))


def revoked(tokens: Sequence[str]) -> dict[str, object]:
    """Return what an audit entry says of join tokens that were revoked: how many, and the first ones' public ids."""
    return {"tokens": len(tokens), "revoked": list(tokens[:TOKENS_NAMED])}


def machine_limit(asked: int, field: str) -> int:
    """Return how many machines an organisation may have on the hosted cluster. Errors: `INVALID_REQUEST`."""
    if not 0 <= asked <= LIMIT_MAX:
        raise Refusal("INVALID_REQUEST", f"{field}: use 0 to {LIMIT_MAX}.", field=field)
    return asked


@dataclass(frozen=True)
class Room:
    """What of the hosted cluster's machine limit is taken."""

    limit: int
    machines: int
    """Enrolled ones."""
    tokens: int
    """Join tokens that are neither used, revoked nor expired."""


def check_room(room: Room, contact: str) -> None:
    """Refuse one more join token when the limit is reached. Errors: `LIMIT_REACHED`.

    `contact` is the operator's contact line ("": none given): the limit is theirs.
    """
    if room.machines + room.tokens < room.limit:
        return
    whom = f"the site's operator ({contact})" if contact else "the site's operator"
    raise Refusal(
        "LIMIT_REACHED",
        f"The hosted cluster takes {room.limit} machines of an organisation: {room.machines} are enrolled and "
        f"{room.tokens} join tokens wait to be used. Remove a machine, revoke an unused token, "
        f"or ask {whom} for a higher limit.",
        limit=room.limit,
        machines=room.machines,
        tokens=room.tokens,
        contact=contact,
    )


def check_unused(cluster: str, workspaces: Sequence[str]) -> None:
    """Refuse to take a cluster out of the organisation while workspaces have access. Errors: `CLUSTER_IN_USE`."""
    if not workspaces:
        return
    named = ", ".join(workspaces[:NAMED]) + (", …" if len(workspaces) > NAMED else "")
    raise Refusal(
        "CLUSTER_IN_USE",
        f"Workspaces have access to '{cluster}': {named}. Take that access away first.",
        workspaces=list(workspaces[:NAMED]),
        count=len(workspaces),
    )


def check_deletable(org: str, *, left: bool, machines: int) -> None:
    """Refuse to delete a dedicated cluster that its organisation uses, or with machines. Errors: `CLUSTER_IN_USE`."""
    if not left:
        raise Refusal(
            "CLUSTER_IN_USE",
            f"Organisation '{org}' still uses this cluster. Its admins take it out of the organisation first.",
            org=org,
            machines=machines,
        )
    if machines:
        raise Refusal(
            "CLUSTER_IN_USE",
            f"{machines} machines of '{org}' are enrolled in this cluster. Give it back to the organisation, whose "
            "admins remove them and leave it again.",
            org=org,
            machines=machines,
        )


# --- requests for a dedicated cluster


class Answer(str, Enum):
    """How a request ended."""

    MADE = "made"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


OPEN = "open"


def note(text: str, field: str) -> str:
    """Return what somebody wrote, trimmed: up to 2000 characters, lines allowed. Errors: `INVALID_REQUEST`."""
    kept = text.strip()
    if len(kept) > NOTE_MAX or any(unicodedata.category(c) in HIDDEN and c not in "\n\t" for c in kept):
        raise Refusal(
            "INVALID_REQUEST",
            f"{field}: {shown(text)} is not up to {NOTE_MAX} printable characters. Correct it.",
            field=field,
        )
    return kept


def check_open_requests(count: int) -> None:
    """Refuse one request more than an organisation may have open. Errors: `CONFLICT`."""
    if count >= OPEN_REQUESTS_MAX:
        raise Refusal(
            "CONFLICT",
            f"{count} requests for clusters wait for the operator's answer, and no more may. Withdraw one first.",
            open=count,
        )


def answered(answer: str) -> Refusal:
    """A request is answered, or withdrawn, once."""
    return Refusal("CONFLICT", f"This request is over already: {answer}. Look at the list of requests.", answer=answer)
