"""What the machine calls itself: host name, architecture, operating system, kernel (spec 40, "Reporting")."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from corral.agent.inventory.files import printable, read_text

OS_RELEASE = ("etc/os-release", "usr/lib/os-release")


def hostname(root: Path = Path("/")) -> str:
    """Return the kernel's host name, printable."""
    return printable(read_text(root, "proc/sys/kernel/hostname") or os.uname().nodename, 255)


def arch() -> str:
    """Return the machine's architecture as the kernel names it, e.g. "x86_64"."""
    return os.uname().machine


def kernel(root: Path = Path("/")) -> str:
    """Return the kernel's release, e.g. "6.1.0-18-amd64"."""
    return printable(read_text(root, "proc/sys/kernel/osrelease") or os.uname().release)


def os_name(root: Path = Path("/")) -> str:
    """Return the distribution's own name for itself, e.g. "Debian GNU/Linux 12 (bookworm)"; "" when it has none."""
    for path in OS_RELEASE:
        facts = parse_os_release(read_text(root, path))
        name = facts.get("PRETTY_NAME") or f"{facts.get('NAME', '')} {facts.get('VERSION_ID', '')}".strip()
        if name:
            return printable(name)
    return ""


def parse_os_release(text: str) -> dict[str, str]:
    """Return the assignments of an os-release file; lines that are none are left out."""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, sign, value = line.strip().partition("=")
        if sign and not key.startswith("#"):
            facts[key] = _unquoted(value)
    return facts


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:  # a quote that is never closed
        return value.strip("\"'")
