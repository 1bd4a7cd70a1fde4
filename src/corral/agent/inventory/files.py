"""How probes read the machine: nothing that is missing or malformed may stop an inventory (spec 40, "Reporting").

Every path is taken below a `root`, so that the same code reads a fixture tree.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES = 1 << 20
MIB = 1 << 20


def read_text(root: Path, path: str) -> str:
    """Return the text of `path` below `root`, stripped; "" when it cannot be read."""
    try:
        with (root / path).open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def read_int(root: Path, path: str) -> int | None:
    """Return the whole number that stands in `path` below `root`; None when there is none."""
    return to_int(read_text(root, path))


def to_int(text: str) -> int | None:
    """Return `text` as a whole number; None when it is not one."""
    try:
        return int(text)
    except ValueError:
        return None


def printable(text: str, limit: int = 200) -> str:
    r"""Return `text` with control and invisible characters as `\x1b`, cut to `limit` characters.

    Names of hosts, processes and disks are chosen by anybody; raw they could steer a terminal.
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else _escaped(c) for c in cut)


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`, mode 0600, or leave it as it was. Errors: OSError."""
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
