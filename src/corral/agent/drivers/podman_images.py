"""Images in the agent's store: looked up, pulled, or, for the base image, built from the host's own packages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

from corral.agent import images
from corral.agent.drivers.base import DriverError
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


class Images:
    """The images of one agent."""

    def __init__(self, service: PodmanService, state_dir: Path) -> None:
        self._service = service
        self._state_dir = state_dir
        self._building = Lock()

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
        found = self._find(reference)
        if found is not None:
            say(f"image {reference} is on the machine")
            return found
        if reference == images.BASE_IMAGE:
            self._build_base(say)
        else:
            self._pull(reference, say)
        found = self._find(reference)
        if found is None:
            raise DriverError(
                f"the image {reference} is gone again; is something else cleaning this store?", retry=True
            )
        return found

    def _find(self, reference: str) -> Image | None:
        answer = self._service.call("GET", f"/images/{quote(reference, safe='')}/json")
        if answer.status == 404:
            return None
        data = self._service.expect(f"looking up image {reference}", answer).json()
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


def _pull_error(reference: str, said: str) -> DriverError:
    hint = "check its name, and that this machine reaches the registry"
    if "short-name" in said:
        hint = f"write the registry's name too, such as docker.io/library/{reference}"
    return DriverError(f"image {reference} could not be pulled: {said}; {hint}", retry=any(w in said for w in _PASSING))
