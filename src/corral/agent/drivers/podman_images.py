"""Images in the agent's store: looked up, pulled, or, for the base image, built from the host's own packages.

They have a share of the machine's disk. Where they outgrow it, pulled ones that no
allocation began from are removed, the longest unused first; while those in use alone fill
it, no other is pulled. The base image stays, and what somebody loaded by hand. One is
pulled at a time; a pull that outgrows the share or the disk is broken off.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from corral.agent import images
from corral.agent.drivers import podman_layers
from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import wait_for
from corral.agent.drivers.podman_layers import free_mib, size_mib, taken_mib
from corral.agent.drivers.podman_service import PodmanService
from corral.agent.drivers.pull_watch import watching
from corral.agent.drivers.pulled_images import PulledImages
from corral.agent.drivers.storage import Layers, layers

SILENCE_S = 600.0
"""A pull that says nothing for so long is given up."""
TURN_S = 1200.0
"""A pull that goes on for so long lets another one that waits go first."""
BREAK_S = 2.0
"""Podman has so long to end a pull that was broken off; while it unpacks a layer it does not listen."""

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


class Images:
    """The images of one agent. Safe for many threads."""

    def __init__(
        self,
        service: PodmanService,
        state_dir: Path,
        share_mib: int,
        reserve_mib: int,
        in_use: Callable[[], Set[str]],
    ) -> None:
        """`in_use` returns the ids of the images that allocations began from.

        A pull never takes the last `reserve_mib` of the file system.
        """
        self.share_mib = share_mib
        self.reserve_mib = reserve_mib
        self._service = service
        self._state_dir = state_dir
        self._in_use = in_use
        self._turn = Lock()
        """Of the one pull or build."""
        self._waiting = 0
        self._pulled = PulledImages(state_dir / "pulled-images.json")
        self._lock = Lock()
        self._held: Counter[str] = Counter()
        """Names and ids that a start is at, and how many are."""

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
        with self._one_at_a_time(say):
            if self._find(reference) is not None:
                return
            if reference == images.BASE_IMAGE:
                self._build_base(say)
            else:
                self._get_alone(reference, say)

    @contextlib.contextmanager
    def _one_at_a_time(self, say: Callable[[str], None]) -> Iterator[None]:
        """Wait for the pull that goes on: many at once would each find room for itself."""
        with self._lock:
            self._waiting += 1
        try:
            if not self._turn.acquire(blocking=False):
                say("waiting for another image that is being pulled")
                self._turn.acquire()
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    def _get_alone(self, reference: str, say: Callable[[str], None]) -> None:
        self._settle()
        if not self._make_room(self._fit):
            raise self._no_room()
        self._pulled.begin(reference, {str(row["Id"]) for row in self._listed()})
        try:
            self._pull(reference, say)
        finally:
            self._settle()
        self._make_room(self._fit)

    def _settle(self) -> None:
        """Note what the last pull brought, an earlier agent's too, and remove what it left."""
        if reference := self._pulled.pulling():
            found = self._find(reference)
            self._pulled.end(found.id if found else None)
        podman_layers.remove_downloads(self._service.store)
        for chain in podman_layers.leftovers(self._service.store):
            archive = self._state_dir / "leftover.tar"
            podman_layers.image_of(chain, archive)
            with archive.open("rb") as source:
                # What Podman does not take back stays counted, and is tried again with the next pull.
                self._service.upload("/images/load", {}, source, SILENCE_S)
            archive.unlink()
        for row in self._listed():
            if podman_layers.LABEL_LEFTOVER in (row.get("Labels") or {}) and not row.get("Names"):
                self._service.call("DELETE", f"/images/{row['Id']}")

    def _no_room(self) -> DriverError:
        if free_mib(self._service.store) < self.reserve_mib:
            return DriverError(
                f"this machine's disk is nearly full ({self.reserve_mib} MiB must stay free): no image is pulled; "
                "free some space on it",
                retry=True,
            )
        return DriverError(
            f"the images in use on this machine fill their share of its disk ({size_mib(self._service.store)} of "
            f"{self.share_mib} MiB): use one of them, or terminate what uses others",
            retry=True,
        )

    def _listed(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._service.expect(
            "listing images", self._service.call("GET", "/images/json")
        ).json()
        return rows

    def _make_room(self, fit: Callable[[], bool]) -> bool:
        """Remove unused images that were pulled, the longest unused first, until all fit; return whether they do."""
        if fit():
            return True
        rows = {str(row["Id"]): row for row in self._listed()}
        self._pulled.keep(rows.keys())
        for image in self._pulled.ids():
            self._remove_unused(rows[image])
            if fit():
                return True
        return False

    def _fit(self) -> bool:
        store = self._service.store
        return taken_mib(store) < self.share_mib and free_mib(store) >= self.reserve_mib

    def _remove_unused(self, row: Mapping[str, Any]) -> None:
        """Remove an image unless a start is at it or an allocation began from it; looked at and done under one lock."""
        image, names = str(row["Id"]), {*(row.get("Names") or ()), *(row.get("RepoDigests") or ())}
        with self._lock:
            if row.get("ReadOnly") or images.BASE_IMAGE in names or self._is_held(image, names):
                return
            if image in self._in_use():
                return
            self._service.call("DELETE", f"/images/{image}", {"force": "true"})

    def _is_held(self, image: str, names: Set[str]) -> bool:
        """Tell whether a start may be at this image; too often rather than too seldom."""
        if not names:
            return len(self._held) > 1  # it may be asked for by a part of its id
        held = {_last_part(name) for name in self._held}
        return image in self._held or any(_last_part(name) in held for name in names)

    def _find(self, reference: str) -> Image | None:
        answer = self._service.call("GET", f"/images/{quote(reference, safe='')}/json")
        if answer.status == 404:
            return None
        data = self._service.expect(f"looking up image {reference}", answer).json()
        self._pulled.used(data["Id"])
        driver = data["GraphDriver"]["Data"]
        environment = (data.get("Config") or {}).get("Env") or ()
        pairs = (entry.partition("=") for entry in environment)
        below = layers(driver["UpperDir"], driver.get("LowerDir", ""))
        return Image(data["Id"], below, {name: value for name, _, value in pairs if name})

    def _pull(self, reference: str, say: Callable[[str], None]) -> None:
        say(f"pulling {reference}")
        before, began = podman_layers.layer_ids(self._service.store), time.monotonic()
        self._service.ensure()
        service = self._service.pid()
        try:
            with watching(lambda: self._wrong(reference, before, began)) as watch:
                query = {"reference": reference}
                for line in self._service.lines("POST", "/images/pull", query, SILENCE_S, watch.opened):
                    self._hear(reference, line, say)
        finally:
            # A pull that was broken off is over when what it downloaded is gone.
            over = wait_for(lambda: not podman_layers.downloads(self._service.store), BREAK_S)
            if not over and self._service.pid() == service:
                self._service.kill()

    def _hear(self, reference: str, line: bytes, say: Callable[[str], None]) -> None:
        said: dict[str, Any] = json.loads(line or b"{}")
        if said.get("error"):
            raise _pull_error(reference, str(said["error"]))
        if text := str(said.get("stream", "")).strip():
            say(text)

    def _wrong(self, reference: str, before: frozenset[str], began: float) -> DriverError | None:
        """Return why the pull that goes on must end; `before` are the layers that were there as it began."""
        brought = taken_mib(self._service.store, before)
        if brought >= self.share_mib:
            return DriverError(
                f"image {reference} is larger than the share of this machine's disk that images have "
                f"({self.share_mib} MiB): use a smaller one"
            )
        if not self._make_room(self._fit):
            return self._no_room()
        if self._waiting and time.monotonic() - began > TURN_S:
            return DriverError(f"image {reference} took too long to pull while others wait", retry=True)
        return None

    def _build_base(self, say: Callable[[str], None]) -> None:
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
