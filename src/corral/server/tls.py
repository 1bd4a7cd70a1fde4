"""TLS (spec 05): off only on loopback; else the site's own certificate, one it is given, or a trusted proxy's.

The site's own CA is made once and lives ten years: it is what machines and people pin. Its server
certificate lives 397 days and is renewed, by the same CA, when fewer than 30 are left.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.server.config import Config
from corral.server.setup_error import SetupError

CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=397)
RENEW_BEFORE = timedelta(days=30)
_CLOCK_SLACK = timedelta(hours=1)  # a machine whose clock is a little behind must still accept a new certificate

_DNS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

MODES = ("auto", "own", "off", "files", "proxy")


@dataclass(frozen=True)
class Tls:
    """What the site serves with. Both paths None: plain HTTP (loopback, or behind a trusted proxy)."""

    cert: Path | None = None
    key: Path | None = None
    ca_pem: str | None = None
    """The CA to pin; None where the system's own trust is meant to do."""

    @property
    def on(self) -> bool:
        return self.cert is not None

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the CA certificate's DER, in hex."""
        return None if self.ca_pem is None else fingerprint(self.ca_pem)


def prepare(config: Config, now: datetime) -> Tls:
    """Return what to serve with, making or renewing the site's own certificate where it is wanted.

    Errors: `SetupError` where the settings would serve plain HTTP to others, or files are missing or do not fit.
    """
    mode = config.tls
    if mode not in MODES:
        raise SetupError(f"--tls {mode} is not known.", f"Use one of: {', '.join(MODES)}.")
    if mode == "auto":
        mode = "files" if config.tls_cert else "off" if is_loopback(config.host) else "own"
    if mode == "off":
        return _plain(config)
    if mode == "proxy":
        return _behind_proxy(config)
    if mode == "files":
        return _given(config, now)
    return _own(config.state_dir / "tls", names(config), now)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fingerprint(ca_pem: str) -> str:
    return x509.load_pem_x509_certificate(ca_pem.encode()).fingerprint(hashes.SHA256()).hex()


def renew(config: Config, tls: Tls, now: datetime, into: ssl.SSLContext) -> bool:
    """Renew the site's own server certificate when it is due; new connections get it. Returns whether it did."""
    folder = config.state_dir / "tls"
    if tls.cert != folder / "server.pem" or tls.key is None or not _due(tls.cert, names(config), now):
        return False
    _own(folder, names(config), now)
    into.load_cert_chain(tls.cert, tls.key)
    return True


def expires(cert: Path) -> datetime:
    """Return when the certificate in `cert` ends. Errors: `SetupError`."""
    return _read_cert(cert).not_valid_after_utc


def names(config: Config) -> list[str]:
    """Return the host names and addresses the site's own certificate is for, sorted."""
    found = {"localhost", "127.0.0.1", "::1"}
    if _DNS_NAME.fullmatch(own := socket.gethostname()):
        found.add(own)
    if config.public_url and (host := urlsplit(config.public_url).hostname):
        found.add(host if host.isascii() else host.encode("idna").decode())
    if config.host not in ("0.0.0.0", "::", ""):
        found.add(config.host)
    elif address := own_address():
        found.add(address)
    return sorted(found)


def own_address() -> str | None:
    """Return the address this machine would use towards others; None without a network. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _plain(config: Config) -> Tls:
    if not is_loopback(config.host):
        raise SetupError(
            f"Plain HTTP on {config.host} would show everybody's tokens to the network.",
            "Leave --tls at 'auto' (the site's own certificate), give --tls-cert and --tls-key, "
            "or use --tls proxy with --trusted-proxy behind one that ends TLS.",
        )
    return Tls()


def _behind_proxy(config: Config) -> Tls:
    if not config.trusted_proxies:
        raise SetupError(
            "--tls proxy needs to know the proxy.",
            "Name its address with --trusted-proxy; plain HTTP is accepted from there only.",
        )
    if not config.public_url.startswith("https://"):
        raise SetupError(
            "--tls proxy needs the address that people and machines use.",
            "Give it with --public-url https://NAME; the proxy answers there.",
        )
    return Tls(ca_pem=_given_ca(config))


def _given(config: Config, now: datetime) -> Tls:
    if config.tls_cert is None or config.tls_key is None:
        raise SetupError("--tls files needs a certificate and its key.", "Give both --tls-cert and --tls-key.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"{config.tls_cert} and {config.tls_key} cannot be used: {error}.",
            "Give a PEM certificate (its chain after it) and the PEM key that belongs to it, readable by this user.",
        ) from error
    if expires(config.tls_cert) <= now:
        raise SetupError(f"The certificate {config.tls_cert} has expired.", "Renew it, then start again.")
    return Tls(config.tls_cert, config.tls_key, _given_ca(config))


def _given_ca(config: Config) -> str | None:
    if config.tls_ca is None:
        return None
    _read_cert(config.tls_ca)
    return config.tls_ca.read_text()


def _own(folder: Path, hosts: Sequence[str], now: datetime) -> Tls:
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
    if not server.exists() or not _belongs(key, server) or _due(server, hosts, now):
        _make_server(folder, hosts, now)
    return Tls(server, key, ca_cert.read_text())


def _due(server: Path, hosts: Sequence[str], now: datetime) -> bool:
    """Return whether the server certificate must be made again: ends soon, or lacks a name it should have."""
    cert = _read_cert(server)
    have = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    listed = {*have.get_values_for_type(x509.DNSName), *map(str, have.get_values_for_type(x509.IPAddress))}
    return (
        cert.not_valid_after_utc - now < RENEW_BEFORE or not listed.issuperset(hosts) or not _signed_by_ca(cert, server)
    )


def _signed_by_ca(cert: x509.Certificate, server: Path) -> bool:
    try:
        cert.verify_directly_issued_by(_read_cert(server.with_name("ca.pem")))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _belongs(key: Path, server: Path) -> bool:
    """Return whether `key` is the certificate's own: a crash may have left a new key beside an old certificate."""
    if not key.exists():
        return False
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    return private.public_key() == _read_cert(server).public_key()


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
    ca = _read_cert(folder / "ca.pem")
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


def _read_cert(path: Path) -> x509.Certificate:
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
