"""The agent's state folder: a key, who this machine is, what it was told to run (spec 40, "Joining").

- Files are whole or not there: written beside, fsync, renamed, the folder fsynced.
- A write that the disk refuses leaves the old file; it is a condition of the machine, and the
  agent goes on with what it has in memory.
- A file that cannot be read back is refused: starting anew silently would lose work.
- One agent a folder: it holds a lock there as long as it lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from corral.protocol import codec

T = TypeVar("T")
FORMAT = 1
"""Version of the files' layout. A newer one is refused, so that an older agent never garbles it."""

KEY, MACHINE, CA, TOMBSTONE, LOCK = "key", "machine.json", "ca.pem", "removed.json", "lock"
DATA_LOCATION = "data-location.json"
LOCK_PATIENCE_S = 0.5
_HEX_KEY = re.compile(r"[0-9a-f]{64}")


class StateError(Exception):
    """The folder cannot be used; the message says why and what to do."""


class Unwritable(StateError):
    """The disk refused a write. What was there before is still there, whole."""


@dataclass(frozen=True)
class Machine:
    """Who this machine is: the answer to its join."""

    url: str
    """The site's base URL, no slash at its end."""
    machine: str
    name: str
    org: str
    cluster: str
    incarnation: str = ""


@dataclass(frozen=True)
class Tombstone:
    """This machine was removed. Kept, so that it cannot come back by itself."""

    machine: str
    name: str
    message: str
    done: bool = False
    """All its work has ended."""


class StateFolder:
    """Reads and writes the files of one folder. Errors: `StateError`, `Unwritable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    def make(self) -> None:
        """Make the folder, only root's."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def lock(self) -> None:
        """Hold the folder until this process ends. Errors: `StateError` when another agent has it."""
        try:
            fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(self.path / LOCK, error) from error
        # `status` looks whether it can have the lock, for a moment: that must not stop an agent.
        give_up = time.monotonic() + LOCK_PATIENCE_S
        while not _locked(fd):
            if time.monotonic() >= give_up:
                os.close(fd)
                raise StateError(f"another agent works with {self.path}; stop it first (systemctl stop corral-agent)")
            time.sleep(0.05)
        self._lock_fd = fd

    def held(self) -> bool:
        """Tell whether an agent holds the folder now."""
        try:
            fd = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locked(fd)
        finally:
            os.close(fd)

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def key(self) -> str:
        """Return the machine's key, 64 hex digits; "" when there is none."""
        text = self._read_text(KEY)
        if text is None:
            return ""
        if not _HEX_KEY.fullmatch(text.strip()):
            raise self._corrupt(KEY, "it does not hold 64 hex digits")
        return text.strip()

    def make_key(self) -> str:
        """Return the machine's key, made now and safe on disk if there is none yet."""
        known = self.key()
        if not known:
            known = os.urandom(32).hex()
            self.write_text(KEY, known + "\n")
        return known

    def machine(self) -> Machine | None:
        return self.read(MACHINE, Machine)

    def tombstone(self) -> Tombstone | None:
        return self.read(TOMBSTONE, Tombstone)

    def ca(self) -> str:
        """Return the pinned CA certificates (PEM); "" = the system's own."""
        return self._read_text(CA) or ""

    def read(self, name: str, kind: type[T]) -> T | None:
        """Return the object in a file, None when there is no such file."""
        text = self._read_text(name)
        if text is None:
            return None
        try:
            whole = json.loads(text)
            layout = whole["format"]
            if layout == FORMAT:
                return codec.from_plain(kind, whole["body"], name)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._corrupt(name, str(error) or type(error).__name__) from error
        raise StateError(f"{self.path / name} has layout {layout!r}, this agent knows {FORMAT}; install a newer agent")

    def write(self, name: str, body: object) -> None:
        text = json.dumps({"format": FORMAT, "body": codec.to_plain(body)}, separators=(",", ":"))
        self.write_text(name, text + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Replace a file, mode 0600, and make that last through a power cut; or leave all as it was."""
        path = self.path / name
        beside = path.with_name(path.name + ".new")
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise _unwritable(path, error) from error

    def remove(self, name: str) -> None:
        """Remove a file; no error when there is none."""
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except OSError as error:
            raise _unwritable(path, error) from error

    def names(self, folder: str) -> list[str]:
        """Return the JSON files in a folder of this one, as `folder/name`; it need not exist."""
        try:
            found = sorted(path.name for path in (self.path / folder).iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(f"{self.path / folder} cannot be read: {error.strerror}") from error
        return [f"{folder}/{name}" for name in found]

    def make_folder(self, folder: str) -> None:
        try:
            (self.path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.path / folder, error) from error

    def _read_text(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise self._corrupt(name, "it is not text") from error
        except OSError as error:
            raise StateError(f"{self.path / name} cannot be read: {error.strerror}; run as root") from error

    def _corrupt(self, name: str, why: str) -> StateError:
        return StateError(
            f"{self.path / name} is damaged ({why}). Nothing was changed and running containers go on. "
            "Put the file back from a copy; else remove this machine in Corral and join it again with a new token"
        )


def clean_token(raw: bytes) -> str:
    """Return the join token of a file's bytes, without what editors and shells put round it.

    A byte order mark (UTF-8 or UTF-16), spaces, newlines and NULs are dropped. Errors: `StateError`.
    """
    utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = raw.decode("utf-16" if utf16 else "utf-8")
    except UnicodeDecodeError as error:
        raise StateError("the token file is not text; write the token into it, nothing else") from error
    token = text.strip("\ufeff\x00 \t\r\n")
    if not token or len(token) > 200 or not token.isascii() or any(c.isspace() for c in token):
        raise StateError("the token file does not hold one join token; get a new install command in Corral")
    return token


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unwritable(path: Path, error: OSError) -> Unwritable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unwritable(f"the disk that holds {path.parent} is full; free space on it")
    return Unwritable(f"{path} cannot be written: {error.strerror or error}")
