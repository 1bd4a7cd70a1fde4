"""Refusals: how a rule says no (spec 05 and 10, "Every error is JSON").

`CODES` is the one list of codes that Corral's API answers with. Which HTTP status each has
stands in `server/errors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CODES: Mapping[str, str] = {
    "INVALID_REQUEST": "A body, parameter or header is malformed, of the wrong type, or out of range.",
    "UNAUTHENTICATED": "No credential, or one that is unknown, expired or revoked.",
    "FORBIDDEN": "The caller's role does not allow this.",
    "NOT_FOUND": "No such thing, or it belongs to somebody else: the answer is the same.",
    "METHOD_NOT_ALLOWED": "The path exists, but not with this method.",
    "CONFLICT": "What was asked does not fit the present state.",
    "NAME_TAKEN": "Another one here has this name already.",
    "INVALID_NAME": "A name or short name has characters or a length that are not allowed.",
    "IDEMPOTENCY_KEY_REUSED": "The same Idempotency-Key came with another body.",
    "TOO_LARGE": "The body is larger than is accepted.",
    "RATE_LIMITED": "Too many requests; `Retry-After` says when to come again.",
    "UNAVAILABLE": "The control plane cannot answer now; try again.",
    "LAST_OWNER": "An organisation keeps at least one owner.",
    "LINK_USED": "A one-time link works once.",
    "LINK_EXPIRED": "A one-time link works until it expires.",
    "RESERVED_LABEL": "A label key that Corral sets, or may set, itself.",
    "INVALID_LABEL": "A label's key or value has characters or a length that are not allowed.",
    "INVALID_TTL": "A join token lives between 60 and 604800 seconds.",
    "LIMIT_REACHED": "The hosted cluster's machine limit; unexpired unused join tokens count.",
    "CLUSTER_IN_USE": "A workspace has access to the cluster, or machines are enrolled in it.",
    "CLUSTER_REQUIRED": "There are several clusters: name one.",
    "TOKEN_UNKNOWN": "No join token is this one: mistyped, cut short, or revoked.",
    "TOKEN_USED": "Another machine joined with this token.",
    "TOKEN_EXPIRED": "The join token's time is over.",
    "MACHINE_REMOVED": "This machine was removed; its credential is dead for ever.",
    "NODE_IN_USE": "Work runs on the machine.",
    "NODE_NOT_FOUND": "No machine of this name in the cluster.",
    "NODE_NOT_CONNECTED": "The machine has no open session, and this has to be delivered to it.",
    "INVALID_RESERVATION": "A reservation of nothing or too much, of an empty or past window, or by another label.",
    "RESERVATION_CONFLICT": "Another reservation has one of these machines for some of this time.",
    "WORKSPACE_NOT_FOUND": "No workspace of this name in the organisation.",
    "INVALID_PATH": "A data location is an absolute, normal path on a disk of the machine, no system folder.",
    "DATA_LOCATION_IN_USE": "The machine holds drive copies in its data location.",
    "INVALID_URL": "A target that cannot be told: no https address, or one that must not be reached from the site.",
    "NO_CAPACITY": "No machine can take this now; `details.machines` has the reason for each.",
    "QUOTA_EXCEEDED": "The workspace's quota on this cluster is less than this would use.",
    "QUEUE_FULL": "As many workloads of the workspace wait for this cluster as may.",
    "NO_ACCESS": "The workspace has no access to a cluster.",
    "INVALID_SSH_KEY": "Not an SSH public key.",
    "NO_SSH_KEY": "No SSH key of the caller is attached.",
    "NOT_ACTIVE": "The compute cluster is not Active.",
    "MACHINE_UNREACHABLE": "The machine has no open session, so no stream can be opened.",
    "PROTOCOL_TOO_OLD": "The agent's protocol is older than this control plane supports.",
    "INTERNAL": "A fault of Corral's own; the request id finds it in the log.",
}


class Refusal(Exception):
    """A rule's no. The message says what was wrong, with which value, and what to do next."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        if code not in CODES:
            raise ValueError(f"undocumented refusal code {code}")
        self.code = code
        self.message = message
        self.details: dict[str, Any] = details


def not_found() -> Refusal:
    """The one answer for what is absent and for what is another tenant's."""
    return Refusal("NOT_FOUND", "There is nothing here by that name, or you may not know of it. Check the name.")
