"""TLS (spec 05): off only on loopback; else the site's own certificate, one it is given, or a trusted proxy's.

The site's own CA is made once and lives ten years: it is what machines and people pin. Its server
certificate lives 397 days and is renewed, by the same CA, when fewer than 30 are left.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from corral.server.config import Config
from corral.server.setup_error import SetupError

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
        if self.ca_pem is None:
            return None
        from corral.server import certificates

        return certificates.fingerprint(self.ca_pem)


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
    return _own(config, now)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def renew(config: Config, tls: Tls, now: datetime, into: ssl.SSLContext) -> bool:
    """Renew the site's own server certificate when it is due; new connections get it. Returns whether it did."""
    folder = config.state_dir / "tls"
    if tls.cert != folder / "server.pem" or tls.key is None:
        return False
    from corral.server import certificates

    if not certificates.due(tls.cert, names(config), now):
        return False
    certificates.keep(folder, names(config), now)
    into.load_cert_chain(tls.cert, tls.key)
    return True


def expires(cert: Path) -> datetime:
    """Return when the certificate in `cert` ends. Errors: `SetupError`."""
    from corral.server import certificates

    return certificates.read(cert).not_valid_after_utc


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
    expires(config.tls_ca)  # it is a certificate
    return config.tls_ca.read_text()


def _own(config: Config, now: datetime) -> Tls:
    from corral.server import certificates

    folder = config.state_dir / "tls"
    certificates.keep(folder, names(config), now)
    return Tls(folder / "server.pem", folder / "server.key", (folder / "ca.pem").read_text())
