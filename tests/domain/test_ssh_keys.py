"""SSH keys: real public keys are taken, everything else is refused with what is wrong (spec 20, "Connect")."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.errors import Refusal
from corral.domain.ssh_keys import parse

AnyKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _line(key: AnyKey) -> str:
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _wire(*parts: bytes) -> str:
    return base64.b64encode(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).decode()


ED25519 = _line(ed25519.Ed25519PrivateKey.generate())
POINT = b"\x04" + bytes(64)
SK_ED25519 = "sk-ssh-ed25519@openssh.com " + _wire(b"sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:")
SK_ECDSA = "sk-ecdsa-sha2-nistp256@openssh.com " + _wire(
    b"sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", POINT, b"ssh:"
)
GOOD = [
    ED25519,
    _line(ec.generate_private_key(ec.SECP256R1())),
    _line(ec.generate_private_key(ec.SECP384R1())),
    _line(ec.generate_private_key(ec.SECP521R1())),
    _line(rsa.generate_private_key(65537, 2048)),
    SK_ED25519,
    SK_ECDSA,
]


@pytest.mark.parametrize("line", GOOD, ids=lambda line: line.split()[0])
def test_every_usual_type_is_taken(line: str) -> None:
    key = parse(line + " bob@laptop\n")
    assert key.line == line + " bob@laptop"
    assert key.comment == "bob@laptop"


def test_the_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    file = tmp_path / "key.pub"
    file.write_text(ED25519 + " me\n")
    shown = subprocess.run(["ssh-keygen", "-l", "-f", file], check=True, capture_output=True, text=True).stdout
    assert parse(file.read_text()).fingerprint == shown.split()[1]


def test_a_byte_order_mark_and_carriage_returns_do_no_harm() -> None:
    assert parse("\ufeff" + ED25519 + " me\r\n").line == ED25519 + " me"


_PRIVATE = ed25519.Ed25519PrivateKey.generate().private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
)
_BLOB = ED25519.split()[1]
_WEAK = _wire(b"ssh-rsa", b"\x01\x00\x01", b"\x00" + b"\xff" * 128)
BAD = {
    "nothing": ("", "empty"),
    "spaces": (" \n ", "empty"),
    "private": (_PRIVATE.decode(), "private"),
    "putty": ("PuTTY-User-Key-File-3: ssh-ed25519", "private"),
    "other format": ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA", "another format"),
    "options": (f'command="rm -rf /" {ED25519}', "options"),
    "restrict": (f"restrict {ED25519}", "options"),
    "two lines": (f"{ED25519}\n{ED25519}", "several lines"),
    "line separator": (f"{ED25519} a\u2028b", "several lines"),
    "garbage": ("hello there", "no key type"),
    "type alone": ("ssh-ed25519", "nothing after"),
    "not base64": ("ssh-ed25519 !!!!", "base64"),
    "cut short": (ED25519[:-8], ""),
    "other type inside": (f"ssh-rsa {_BLOB}", "another type"),
    "dsa": ("ssh-dss " + _wire(b"ssh-dss"), "DSA"),
    "weak rsa": (f"ssh-rsa {_WEAK}", "1024 bits"),
    "negative modulus": ("ssh-rsa " + _wire(b"ssh-rsa", b"\x03", b"\xff" * 256), "not positive"),
    "even exponent": ("ssh-rsa " + _wire(b"ssh-rsa", b"\x02", b"\x00" + b"\xff" * 256), "exponent"),
    "short ed25519": ("ssh-ed25519 " + _wire(b"ssh-ed25519", bytes(31)), "32 bytes"),
    "wrong curve": ("ecdsa-sha2-nistp256 " + _wire(b"ecdsa-sha2-nistp256", b"nistp384", POINT), "curve"),
    "compressed": ("ecdsa-sha2-nistp256 " + _wire(b"ecdsa-sha2-nistp256", b"nistp256", b"\x02" + bytes(32)), "point"),
    "more after it": ("ssh-ed25519 " + _wire(b"ssh-ed25519", bytes(32), b"more"), "after the key"),
    "no application": (SK_ED25519[:27] + _wire(b"sk-ssh-ed25519@openssh.com", bytes(32), b""), "application"),
    "certificate": (f"ssh-ed25519-cert-v01@openssh.com {_BLOB}", "certificate"),
    "long": (f"{ED25519} {'x' * 9000}", "longer"),
    "nul": (f"{ED25519} a\0b", "do not show"),
    "turned round": (f"{ED25519} a\u202eb", "do not show"),
    "escape": (f"{ED25519} \x1b[31m", "do not show"),
}


@pytest.mark.parametrize("text, why", BAD.values(), ids=BAD)
def test_what_is_no_usable_key_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse(text)
    assert refused.value.code == "INVALID_SSH_KEY"
    assert why in refused.value.message


def test_a_private_key_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(Refusal) as refused:
        parse(_PRIVATE.decode())
    assert _PRIVATE.decode().splitlines()[1] not in refused.value.message


@given(st.text(max_size=200) | st.builds(lambda junk: f"ssh-ed25519 {base64.b64encode(junk).decode()}", st.binary()))
def test_whatever_comes_is_a_key_or_a_refusal(text: str) -> None:
    try:
        assert "\n" not in parse(text).line
    except Refusal as refusal:
        assert refusal.code == "INVALID_SSH_KEY"


@given(st.integers(0, len(_BLOB) - 1), st.sampled_from("ABab01+/"))
def test_a_changed_letter_never_passes_as_the_same_key(at: int, letter: str) -> None:
    changed = _BLOB[:at] + letter + _BLOB[at + 1 :]
    try:
        key = parse(f"ssh-ed25519 {changed}")
    except Refusal:
        return
    assert (key.fingerprint == parse(ED25519).fingerprint) == (changed == _BLOB)
