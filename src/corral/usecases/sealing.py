"""What opens a target (a webhook's secret, a service's address) is sealed with the site's key (design decision 13)."""

from __future__ import annotations

from typing import Protocol

CANNOT_BE_OPENED = "It cannot be opened with the site's key: set it again."


class Seal(Protocol):
    """The site's key. What is sealed for one thing (`of`: its id) opens for no other."""

    def seal(self, text: str, of: str) -> bytes: ...

    def open(self, sealed: bytes, of: str) -> str | None:
        """Return the text; None when another key sealed it, for something else, or it was changed."""
        ...
