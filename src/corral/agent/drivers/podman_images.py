"""Images in the agent's store: looked up, pulled, or, for the base image, built from the host's own packages.

They have a share of the machine's disk. Where they outgrow it, those that no allocation
began from are removed, the longest unused first; while those in use alone fill it, no
other is pulled. The base image stays.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from corral.agent import images
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import read_text
from corral.agent.drivers.podman_service import PodmanService
from corral.agent.drivers.storage import Layers, layers

SILENCE_S = 600.0
"""A pull that says nothing for so long is given up."""

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""A registry's reference only, as the site has it too: `dir:/etc` would read this machine's own files."""
MAX_REFERENCE = 300
_PASSING = ("dial tcp", "timeout", "timed out", "connection re", "no route", "i/o", "EOF", "502", "503", "504", "429")
"""Words of a pull's failure that may be gone the next time."""


@dataclass(frozen=True)
class Image:
    id: str
    layers: Layers
    env: Mapping[str, str]


def size_mib(store: Path) -> int:
    """Return what all layers in a store take, each counted once."""
    rows = json.loads(read_text(store / "overlay-layers/layers.json") or "[]")
    return sum(int(row.get("diff-size") or 0) for row in rows) >> 20


class Images:
    """The images of one agent. Safe for many threads."""

    def __init__(self, service: PodmanService, state_dir: Path, share_mib: int, in_use: Callable[[], Set[str]]) -> None:
        """`in_use` returns the ids of the images that allocations began from."""
        self.share_mib = share_mib
        self._service = service
        self._state_dir = state_dir
        self._in_use = in_use
        self._building = Lock()
        self._lock = Lock()
        self._held: Counter[str] = Counter()
        """Names and ids that a start is at, and how many are."""
        self._last_use: dict[str, int] = {}
        """Id -> the higher, the later it was last asked for."""
        self._uses = itertools.count(1)

    @contextlib.contextmanager
    def using(self, name: str, get: Callable[[str], Image]) -> Iterator[Image]:
        """Get an image by its name or id; it is not removed while the block runs."""
        with self._hold(name):
            image = get(name)
            with self._hold(image.id):
                yield image

    @contextlib.contextmanager
    def _hold(self, name: str) -> Iterator[None]:
        with self._lock:
            self._held[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[name] -= 1
                self._held += Counter()  # drops what nobody holds

    def by_id(self, image: str) -> Image:
        """Return an image that an allocation was started from; DriverError when it is not there any more."""
        found = self._find(image)
        if found is None:
            raise DriverError(f"the image {image[:12]} that this allocation was started from is gone from this machine")
        return found

    def fetch(self, reference: str, say: Callable[[str], None]) -> Image:
        """Return the image of this name, got if it is not here; `say` hears what goes on.

        Raises DriverError with the registry's words when it cannot be had.
        """
        if len(reference) > MAX_REFERENCE or not _REFERENCE.fullmatch(reference):
            raise DriverError(f"{reference!r} is not the name of an image")
        with self._hold(reference):
            found = self._find(reference)
            if found is not None:
                say(f"image {reference} is on the machine")
                return found
            self._get(reference, say)
            found = self._find(reference)
        if found is None:
            raise DriverError(
                f"the image {reference} is gone again; is something else cleaning this store?", retry=True
            )
        return found

    def _get(self, reference: str, say: Callable[[str], None]) -> None:
        if reference == images.BASE_IMAGE:
            self._build_base(say)
            return
        if not self._make_room():
            raise DriverError(
                f"the images in use on this machine fill their share of its disk ({size_mib(self._service.store)} of "
                f"{self.share_mib} MiB): use one of them, or terminate what uses others",
                retry=True,
            )
        self._pull(reference, say)
        self._make_room()

    def _make_room(self) -> bool:
        """Remove unused images, the longest unused first, until all fit; return whether they do."""
        if self._fit():
            return True
        rows = self._service.expect("listing images", self._service.call("GET", "/images/json")).json()
        for row in sorted(rows, key=lambda row: self._last_use.get(row["Id"], 0)):
            self._remove_unused(row)
            if self._fit():
                return True
        return False

    def _fit(self) -> bool:
        return size_mib(self._service.store) < self.share_mib

    def _remove_unused(self, row: Mapping[str, Any]) -> None:
        """Remove an image unless a start is at it or an allocation began from it; looked at and done under one lock."""
        image, names = str(row["Id"]), {*(row.get("Names") or ()), *(row.get("RepoDigests") or ())}
        with self._lock:
            if row.get("ReadOnly") or images.BASE_IMAGE in names or self._is_held(image, names):
                return
            if image in self._in_use():
                return
            self._service.call("DELETE", f"/images/{image}", {"force": "true"})
            self._last_use.pop(image, None)

    def _is_held(self, image: str, names: Set[str]) -> bool:
        """Tell whether a start may be at this image; too often rather than too seldom."""
        if not names:
            return len(self._held) > 1  # another pull's, that is about to get its name
        held = {_last_part(name) for name in self._held}
        return image in self._held or any(_last_part(name) in held for name in names)

    def _find(self, reference: str) -> Image | None:
        answer = self._service.call("GET", f"/images/{quote(reference, safe='')}/json")
        if answer.status == 404:
            return None
        data = self._service.expect(f"looking up image {reference}", answer).json()
        self._last_use[data["Id"]] = next(self._uses)
        driver = data["GraphDriver"]["Data"]
        environment = (data.get("Config") or {}).get("Env") or ()
        pairs = (entry.partition("=") for entry in environment)
        below = layers(driver["UpperDir"], driver.get("LowerDir", ""))
        return Image(data["Id"], below, {name: value for name, _, value in pairs if name})

    def _pull(self, reference: str, say: Callable[[str], None]) -> None:
        say(f"pulling {reference}")
        for line in self._service.lines("POST", "/images/pull", {"reference": reference}, SILENCE_S):
            said: dict[str, Any] = json.loads(line or b"{}")
            if said.get("error"):
                raise _pull_error(reference, str(said["error"]))
            if text := str(said.get("stream", "")).strip():
                say(text)

    def _build_base(self, say: Callable[[str], None]) -> None:
        with self._building:
            if self._find(images.BASE_IMAGE) is not None:
                return
            say("no registry serves the base image: building it from this machine's own packages")
            with images.build(self._state_dir) as archive:
                query = {"reference": images.BASE_IMAGE, "message": "built from the host's own packages"}
                answer = self._service.upload("/images/import", query, archive, SILENCE_S)
            self._service.expect("importing the base image", answer)


def _last_part(reference: str) -> str:
    """Return "image" of "registry/team/image:tag", as also of the short name that Podman looked up."""
    return re.split("[:@]", reference.rpartition("/")[2])[0]


def _pull_error(reference: str, said: str) -> DriverError:
    hint = "check its name, and that this machine reaches the registry"
    if "short-name" in said:
        hint = f"write the registry's name too, such as docker.io/library/{reference}"
    return DriverError(f"image {reference} could not be pulled: {said}; {hint}", retry=any(w in said for w in _PASSING))
