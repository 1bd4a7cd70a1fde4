"""What goes wrong between a program and a site: one exception."""

from __future__ import annotations

from typing import Any

UNREACHABLE = "UNREACHABLE"
"""The client's own code: no answer came (status 0)."""
UNTRUSTED = "UNTRUSTED"
"""The client's own code: the site's certificate is not one that is trusted or pinned (status 0)."""
NOT_LOGGED_IN = "NOT_LOGGED_IN"
"""The client's own code: no site or no token is known here (status 0)."""
BAD_ANSWER = "BAD_ANSWER"
"""The client's own code: something answered that is not a Corral site, or one much older or newer."""


class CorralError(Exception):
    """A refusal of the site, or its absence. `message` says what to do next.

    `code` is the API's code (or one of this module's own), `details` what the API added,
    `request_id` what the site's log is searched by, `status` the HTTP status (0: no answer).
    """

    def __init__(
        self, code: str, message: str, details: dict[str, Any] | None = None, request_id: str = "", status: int = 0
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details: dict[str, Any] = details or {}
        self.request_id = request_id
        self.status = status
