"""The site's own certificates: a CA of ten years, and server certificates that it signs (rule: `server/tls.py`).

Imported where one is made or read only: the library takes memory that a site behind a proxy, or on loopback, saves.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.server.setup_error import SetupError

CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=397)
RENEW_BEFORE = timedelta(days=30)
_CLOCK_SLACK = timedelta(hours=1)  # a machine whose clock is a little behind must still accept a new certificate


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of a certificate's DER, in hex."""
    return x509.load_pem_x509_certificate(pem.encode()).fingerprint(hashes.SHA256()).hex()


def keep(folder: Path, hosts: Sequence[str], now: datetime) -> None:
    """Make what is missing of the site's own CA and server certificate; never a second CA."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_cert, ca_key = folder / "ca.pem", folder / "ca.key"
    if not ca_cert.exists() and not ca_key.exists():
        _make_ca(ca_cert, ca_key, now)
    if not ca_cert.exists() or not ca_key.exists():
        missing = ca_key if ca_cert.exists() else ca_cert
        raise SetupError(
            f"{missing} is missing, and every machine pins this CA.",
            f"Restore it from the back-up of {folder}. Only on a site without machines: remove the folder.",
        )
    server, key = folder / "server.pem", folder / "server.key"
    if not server.exists() or not _belongs(key, server) or due(server, hosts, now):
        _make_server(folder, hosts, now)


def due(server: Path, hosts: Sequence[str], now: datetime) -> bool:
    """Return whether the server certificate must be made again: ends soon, or lacks a name it should have."""
    cert = read(server)
    have = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    listed = {*have.get_values_for_type(x509.DNSName), *map(str, have.get_values_for_type(x509.IPAddress))}
    return (
        cert.not_valid_after_utc - now < RENEW_BEFORE or not listed.issuperset(hosts) or not _signed_by_ca(cert, server)
    )


def _signed_by_ca(cert: x509.Certificate, server: Path) -> bool:
    try:
        cert.verify_directly_issued_by(read(server.with_name("ca.pem")))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _belongs(key: Path, server: Path) -> bool:
    """Return whether `key` is the certificate's own: a crash may have left a new key beside an old certificate."""
    if not key.exists():
        return False
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    return private.public_key() == read(server).public_key()


def _make_ca(cert_path: Path, key_path: Path, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    # A random part in the name: two sites' CAs must not be taken for one another.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Corral site CA {os.urandom(4).hex()}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    cert = (
        _builder(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    # The key first: a crash between the two leaves a key without a certificate, which is refused, not replaced.
    _write(key_path, _key_pem(key))
    _write(cert_path, cert.public_bytes(serialization.Encoding.PEM))


def _make_server(folder: Path, hosts: Sequence[str], now: datetime) -> None:
    ca = read(folder / "ca.pem")
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(SERVER_LIFE, ca.not_valid_after_utc - now)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Corral")])
    cert = (
        _builder(subject, ca.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write(folder / "server.key", _key_pem(key))
    _write(folder / "server.pem", cert.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SetupError(
            f"{path} cannot be read as a certificate: {error}.", "Give a PEM file that this user may read."
        ) from error


def _write(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, whole or not at all."""
    new = path.with_suffix(path.suffix + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
