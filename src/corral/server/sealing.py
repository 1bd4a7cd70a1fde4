"""The site's key: a file in the state folder, never in the database (design decision 13).

It seals what opens webhooks and services. Whoever has only the database, or a back-up of it, cannot open them. A key
that is lost is made anew; what the old one sealed is then to be set again.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from corral.server.setup_error import SetupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE = "sealing.key"
KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = b"\x01"


class SiteKey:
    """Made or read when it is first needed. AES-256-GCM, bound to what it seals for."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._key: bytes | None = None

    def prepare(self) -> None:
        """Read the key, or make it where there is none. Errors: `SetupError`."""
        with self._lock:
            if self._key is None:
                self._key = self._read_or_make()

    def seal(self, text: str, of: str) -> bytes:
        """Return `text` sealed for `of` (an id): version, nonce, cipher text with its tag."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._aead().encrypt(nonce, text.encode(), of.encode())

    def open(self, sealed: bytes, of: str) -> str | None:
        """Return the text; None when another key sealed it, for something else, or it was changed."""
        from cryptography.exceptions import InvalidTag

        start = len(_VERSION)
        if sealed[:start] != _VERSION:
            return None
        nonce, rest = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        try:
            return self._aead().decrypt(nonce, rest, of.encode()).decode()
        except (InvalidTag, ValueError):
            return None

    def _aead(self) -> AESGCM:
        # Not before something is sealed: the library takes memory, and most of it stays.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._key is None:
            self.prepare()
        assert self._key is not None, "prepare makes it"
        return AESGCM(self._key)

    def _read_or_make(self) -> bytes:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                return _checked(self._path, self._path.read_bytes())
            except FileNotFoundError:
                return self._make()
        except OSError as error:
            raise SetupError(
                f"The site's key {self._path} cannot be read or made: {error.strerror or error}.",
                "Give the state folder to the user that runs the site.",
            ) from error

    def _make(self) -> bytes:
        """Write a new key under a name of its own first: a crash leaves a whole key or none."""
        key, new = os.urandom(KEY_BYTES), self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return key


def _checked(path: Path, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise SetupError(
            f"The site's key {path} is damaged: it has {len(key)} bytes, not {KEY_BYTES}.",
            "Put it back from a back-up. Or remove it: webhooks' secrets and rules' targets are then to be set again.",
        )
    path.chmod(0o600)
    return key
