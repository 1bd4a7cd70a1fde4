"""Which images the agent itself pulled, and in what order they were last used. It outlives the agent.

Only these are ever removed: what somebody loaded into the store by hand may be had nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path
from threading import Lock

from corral.agent.drivers.host import read_text, write_atomic


class PulledImages:
    """Safe for many threads. One pull at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        kept = json.loads(read_text(path) or "{}")
        self._ids: list[str] = kept.get("ids", [])
        """The longest unused first."""
        self._pulling: str = kept.get("pulling", "")
        self._before: list[str] = kept.get("before", [])

    def ids(self) -> list[str]:
        """Return the images that were pulled, the longest unused first."""
        with self._lock:
            return list(self._ids)

    def pulling(self) -> str:
        """Return the name that is being pulled, or was when an earlier agent died; "" for none."""
        return self._pulling

    def begin(self, reference: str, present: Set[str]) -> None:
        """Note before a pull which images are there; none of these is the pull's."""
        with self._lock:
            self._pulling, self._before = reference, sorted(present)
            self._write()

    def end(self, image: str | None) -> None:
        """Note what the pull brought, if anything."""
        with self._lock:
            if image is not None and image not in self._before and image not in self._ids:
                self._ids.append(image)
            self._pulling, self._before = "", []
            self._write()

    def used(self, image: str) -> None:
        with self._lock:
            if image in self._ids and self._ids[-1] != image:
                self._ids.remove(image)
                self._ids.append(image)
                self._write()

    def keep(self, present: Set[str]) -> None:
        """Forget the images that are not there any more: who loads one again by hand keeps it."""
        with self._lock:
            left = [image for image in self._ids if image in present]
            if left != self._ids:
                self._ids = left
                self._write()

    def _write(self) -> None:
        kept = {"ids": self._ids, "pulling": self._pulling, "before": self._before}
        write_atomic(self._path, json.dumps(kept).encode())
