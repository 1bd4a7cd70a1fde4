"""Identifiers: UUIDv7 (spec 10), short names, and names as people write them."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime, timezone

from corral.domain.errors import Refusal

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uuid7(now: datetime, random: bytes) -> str:
    """Return a UUIDv7 of `now` (milliseconds) and 10 random bytes; later ones sort later."""
    ms = int((now - EPOCH).total_seconds() * 1000) & (2**48 - 1)
    raw = bytearray(ms.to_bytes(6, "big") + random[:10])
    raw[6] = 0x70 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def slug(text: str, what: str) -> str:
    """Return `text` if it is a short name: 1 to 63 lower case letters, digits and `-`, not first or last.

    Errors: `INVALID_NAME`. `what` names the thing in the message.
    """
    if SLUG.fullmatch(text) is None or is_uuid(text):
        raise Refusal(
            "INVALID_NAME",
            f"{shown(text)} cannot be a {what}: use 1 to 63 lower case letters, digits and '-', "
            "beginning and ending with a letter or digit.",
            field="slug",
        )
    return text


def display_name(text: str, what: str) -> str:
    """Return a name for people, trimmed: 1 to 100 printable characters. Errors: `INVALID_NAME`."""
    name = text.strip()
    if not 1 <= len(name) <= 100 or any(unicodedata.category(c) in HIDDEN for c in name):
        raise Refusal(
            "INVALID_NAME", f"{shown(text)} cannot be a {what}: use 1 to 100 printable characters.", field="name"
        )
    return name


HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that do not show, or that turn text round."""


def shown(text: str, limit: int = 60) -> str:
    """Return `text` quoted for a message: hidden characters escaped, cut at `limit`."""
    clean = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in HIDDEN else c for c in text[:limit])
    return f"'{clean}{'…' if len(text) > limit else ''}'"


def cleaned_hostname(hostname: str) -> str:
    """Return a machine's name made from its host name: lower case letters, digits, `-`; "machine" if none is left."""
    first = hostname.split(".", 1)[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:50].strip("-")
    return name or "machine"


def unique_name(base: str, taken: set[str]) -> str:
    """Return `base`, or `base-2`, `base-3` … when taken."""
    if base not in taken:
        return base
    number = 2
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"
