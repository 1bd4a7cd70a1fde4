"""Corral: a self-hosted control plane for GPU machines. `from corral import Corral` is the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.client import Corral, CorralError

__version__ = "0.1.0"
__all__ = ["Corral", "CorralError", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: the agent and `corral --help` must not pay for the SDK's HTTP library.
    if name in ("Corral", "CorralError"):
        import corral.client

        return getattr(corral.client, name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")
