"""SSH public keys: one line, as `ssh-keygen` writes it into a `.pub` file (spec 20, "Connect").

The line ends up in a cluster's authorised keys, so it is taken apart and written anew: type,
blob, comment, and nothing else. Options, private keys, certificates and weak keys are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from corral.domain.errors import Refusal
from corral.domain.ids import HIDDEN, shown

TEXT_MAX, COMMENT_MAX, RSA_MIN, RSA_MAX = 8192, 200, 2048, 16384
KEYS_MAX = 100
_TRY = "Send the one line of a .pub file; `ssh-keygen -t ed25519` makes one."


@dataclass(frozen=True)
class PublicKey:
    """A key taken apart. `blob` is base64, `fingerprint` is `SHA256:…` as ssh-keygen shows it."""

    type: str
    blob: str
    fingerprint: str
    comment: str

    @property
    def line(self) -> str:
        return f"{self.type} {self.blob} {self.comment}".rstrip()


def parse(text: str) -> PublicKey:
    """Return the key in `text`. Errors: `INVALID_SSH_KEY`, saying what is wrong; the text is never repeated."""
    line = text.strip("\ufeff \t\r\n")
    _refuse_other_files(line)
    words = line.split(None, 2)
    if words[0] not in _CHECKS:
        _refuse_type(words)
    if len(words) < 2:
        _refuse("there is a key type and nothing after it")
    blob = _decoded(words[1])
    reader = _Reader(blob)
    if reader.string() != words[0].encode():
        _refuse(f"the line says {words[0]} but the key inside is of another type")
    _CHECKS[words[0]](reader)
    reader.end()
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return PublicKey(words[0], words[1], f"SHA256:{digest}", _comment(words[2] if len(words) == 3 else ""))


class _Reader:
    """SSH's wire format (RFC 4251): strings with a length before them."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def string(self) -> bytes:
        length = int.from_bytes(self._raw[:4], "big")
        if len(self._raw) < 4 or len(self._raw) - 4 < length:
            _refuse("it is cut short")
        value, self._raw = self._raw[4 : 4 + length], self._raw[4 + length :]
        return value

    def number(self) -> int:
        raw = self.string()
        if not raw or raw[0] & 0x80:
            _refuse("a number in it is not positive")
        return int.from_bytes(raw, "big")

    def end(self) -> None:
        if self._raw:
            _refuse("there is something after the key inside it")


def _ed25519(reader: _Reader) -> None:
    if len(reader.string()) != 32:
        _refuse("an ed25519 key has 32 bytes")


def _ecdsa(curve: bytes, size: int) -> Callable[[_Reader], None]:
    def check(reader: _Reader) -> None:
        if reader.string() != curve:
            _refuse("its curve is not the one its type names")
        point = reader.string()
        if len(point) != 1 + 2 * size or point[0] != 4:
            _refuse("its point is not one of its curve")

    return check


def _rsa(reader: _Reader) -> None:
    exponent, bits = reader.number(), reader.number().bit_length()
    if not RSA_MIN <= bits <= RSA_MAX:
        _refuse(f"it is RSA with {bits} bits; at least {RSA_MIN} and at most {RSA_MAX} are accepted")
    if exponent < 3 or exponent % 2 == 0:
        _refuse("its RSA exponent is none")


def _on_hardware(check: Callable[[_Reader], None]) -> Callable[[_Reader], None]:
    def with_application(reader: _Reader) -> None:
        check(reader)
        if not reader.string():
            _refuse("a hardware key names its application")

    return with_application


_P256 = _ecdsa(b"nistp256", 32)
_CHECKS: Mapping[str, Callable[[_Reader], None]] = {
    "ssh-ed25519": _ed25519,
    "ssh-rsa": _rsa,
    "ecdsa-sha2-nistp256": _P256,
    "ecdsa-sha2-nistp384": _ecdsa(b"nistp384", 48),
    "ecdsa-sha2-nistp521": _ecdsa(b"nistp521", 66),
    "sk-ssh-ed25519@openssh.com": _on_hardware(_ed25519),
    "sk-ecdsa-sha2-nistp256@openssh.com": _on_hardware(_P256),
}


def _refuse_other_files(line: str) -> None:
    if not line.strip():
        _refuse("it is empty")
    if "PRIVATE KEY" in line or line.startswith("PuTTY-User-Key-File"):
        _refuse("it is a private key, which nobody but you may have: make a new pair if it was sent anywhere")
    if line.startswith("---- BEGIN SSH2"):
        _refuse("it is in another format; `ssh-keygen -i -f FILE` turns it into the right one")
    if len(line) > TEXT_MAX:
        _refuse(f"it is longer than {TEXT_MAX} characters")
    if len(line.splitlines()) > 1:
        _refuse("it has several lines: send one key at a time")


def _refuse_type(words: list[str]) -> NoReturn:
    first = words[0]
    if "-cert-v01@" in first:
        _refuse("it is a certificate, not a key")
    if first == "ssh-dss":
        _refuse("DSA is too weak")
    if any(known in word for word in words[1:] for known in (*_CHECKS, "ssh-dss")):
        _refuse("there are options before the key: leave them out")
    _refuse(f"{shown(first, 30)} is no key type")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        _refuse("what follows the key type is not base64, or is cut short")


def _comment(text: str) -> str:
    if any(unicodedata.category(c) in HIDDEN for c in text):
        _refuse("its comment has characters that do not show")
    return text.strip()[:COMMENT_MAX]


def _refuse(why: str) -> NoReturn:
    raise Refusal("INVALID_SSH_KEY", f"This is not an SSH public key that can be used: {why}. {_TRY}", why=why)
