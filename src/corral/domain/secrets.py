"""Secrets people carry: `<prefix>_<public id>_<secret>_<check>` (spec 40, "Joining").

The prefix is for secret scanners, the public id for lists and logs, the checksum tells a
mistyped one from an unknown one. At rest only SHA-256 of the secret is kept: it is random.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass

JOIN, API, LINK = "corj", "cora", "corl"
RANDOM_BYTES = 6 + 24
"""Bytes of chance that `make` needs: 48 bits of public id, 192 bits of secret."""

_SHAPE = re.compile(r"(cor[a-z])_([a-z2-7]{10})_([a-z2-7]{39})_([a-z2-7]{7})")


@dataclass(frozen=True)
class Secret:
    text: str
    public_id: str
    hash: bytes


def make(prefix: str, random: bytes) -> Secret:
    """Return a new secret from `RANDOM_BYTES` random bytes."""
    body = f"{prefix}_{_base32(random[:6])}_{_base32(random[6:RANDOM_BYTES])}"
    return _read(f"{body}_{_check(body)}")


def parse(prefix: str, text: str) -> Secret | None:
    """Return the secret in `text`, or None if it is not one of `prefix`, cut short, or mistyped.

    A byte order mark, spaces and newlines round it are dropped: token files have them.
    """
    text = text.strip("\ufeff \t\r\n\x00")
    match = _SHAPE.fullmatch(text)
    if match is None or match[1] != prefix or not hmac.compare_digest(_check(text[: match.end(3)]), match[4]):
        return None
    return _read(text)


def same(one: bytes, other: bytes) -> bool:
    """Compare two hashes in constant time."""
    return hmac.compare_digest(one, other)


def hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _read(text: str) -> Secret:
    return Secret(text, text.split("_")[1], hashed(text))


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _check(body: str) -> str:
    return _base32(zlib.crc32(body.encode()).to_bytes(4, "big"))
