"""The SDK: `from corral import Corral`. Typed, synchronous, the names of the API; runs on Python 3.10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.api import Corral

__all__ = ["Corral", "CorralError"]


def __getattr__(name: str) -> Any:
    # `corral.client.config` must stay quick to import for the ssh proxy, which needs no HTTP library.
    if name == "Corral":
        from corral.client.api import Corral

        return Corral
    raise AttributeError(f"module 'corral.client' has no attribute {name!r}")
