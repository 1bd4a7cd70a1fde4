"""Agents of other releases, made of this one's file: for a site to serve, good ones and ones that are broken."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path

import corral
from corral.server import artefact
from corral.server.artefact import PYZ, SUMS, Artefact, ArtefactStore

VERSION = b'__version__ = "%s"'
INIT = "corral/__init__.py"
BROKEN_IMPORT = {"corral/agent/observe.py": ("\nfrom corral.", "\nimport nothing_of_this_name\nfrom corral.")}
"""Dies when it is imported."""
NEWER_LAYOUT = {"corral/agent/state.py": ("FORMAT = 1", "FORMAT = 0")}
"""Cannot read the state folder of this release."""
DIES_AT_WORK = {"corral/agent/loop.py": ("await self.work.adopt()", "raise RuntimeError('this release is broken')")}
"""Passes its self-test and dies as soon as it works."""
HANGS_AT_WORK = {"corral/agent/loop.py": ("await self.work.adopt()", "await asyncio.Event().wait()")}
"""Passes its self-test and never comes to work."""
HANGS_IN_TEST = {"corral/agent/release.py": ("    import corral.agent\n", "    import time; time.sleep(600)\n")}
"""Its self-test does not end."""

NEVER_CONNECTS = {"corral/agent/link.py": ("/api/v1/agent/session", "/api/v1/agent/nothing")}
"""Works, but can never open a session: to it, it looks as an outage of the network does."""
TOO_OLD = {"corral/protocol/messages.py": ("PROTOCOL_VERSION = 1", "PROTOCOL_VERSION = 0")}
"""The site refuses its hello."""
WRONG_KEY = {"corral/agent/link.py": ("Bearer {self._key}", "Bearer {self._key[::-1]}")}
"""The site does not know who it is."""
HELD_S = 30.0

Changes = Mapping[str, tuple[str, str]]
"""By file: a text that stands there, and what takes its place."""


class Serves(ArtefactStore):
    """A site's artefact that a test made."""

    def __init__(self, made: Artefact, release: str) -> None:
        super().__init__(made.pyz.parent)
        self.release = release
        self.made = made
        self.asked = 0
        """How often the site looked for it: once to tell of it, once for each file of a download."""
        self.hold = threading.Event()
        self.hold.set()
        """While it is clear, downloads wait."""

    def get(self) -> Artefact:
        self.asked += 1
        if self.asked > 1:
            self.hold.wait(HELD_S)
        return self.made


def base(folder: Path) -> Path:
    """Return this release's agent, put together in `folder`."""
    return artefact.build(folder).pyz


def release(pyz: Path, folder: Path, version: str, changes: Changes | None = None) -> Serves:
    """Make a release of another version in `folder` from the agent's file, with changes to its sources."""
    folder.mkdir(parents=True, exist_ok=True)
    old = VERSION % corral.__version__.encode()
    edits = {INIT: (old.decode(), (VERSION % version.encode()).decode()), **(changes or {})}
    made = folder / PYZ
    with zipfile.ZipFile(pyz) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, _edited(name, source.read(name), edits.get(name)))
    return Serves(_summed(made), version)


def _edited(name: str, text: bytes, edit: tuple[str, str] | None) -> bytes:
    if edit is None:
        return text
    was, now = (part.encode() for part in edit)
    assert was in text, f"{was!r} does not stand in {name}"
    return text.replace(was, now, 1)


def _summed(made: Path) -> Artefact:
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    sums = made.with_name(SUMS)
    sums.write_text(f"{digest}  {PYZ}\n")
    return Artefact(made, sums, digest, made.stat().st_size)
