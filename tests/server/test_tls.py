"""TLS (spec 05): off only on loopback, one CA for ever, a certificate that is renewed in time."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509

from corral.server import tls
from corral.server.behind import OnlyFrom, networks, within
from corral.server.config import Config
from corral.server.setup_error import SetupError

NOW = datetime.now(timezone.utc).replace(microsecond=0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config("sqlite://", tmp_path, host="0.0.0.0", public_url="https://corral.example:7443")


def _serial(made: tls.Tls) -> int:
    assert made.cert is not None
    return x509.load_pem_x509_certificate(made.cert.read_bytes()).serial_number


def _handshake(made: tls.Tls, trusts: ssl.SSLContext, name: str) -> str:
    """Serve one connection with `made`; return what arrived. Errors: ssl.SSLError when the client does not trust it."""
    assert made.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            with context.wrap_socket(theirs, server_side=True) as secured:
                secured.sendall(b"hello")
        except OSError:
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with trusts.wrap_socket(ours, server_hostname=name) as secured:
            return secured.recv(5).decode()
    finally:
        ours.close()
        thread.join()


def test_plain_http_is_for_loopback_only(config: Config) -> None:
    assert not tls.prepare(replace(config, host="127.0.0.1"), NOW).on
    assert not tls.prepare(replace(config, host="::1", tls="off"), NOW).on
    for host in ("0.0.0.0", "::", "192.0.2.7", "corral.example"):
        with pytest.raises(SetupError, match="--tls"):
            tls.prepare(replace(config, host=host, tls="off"), NOW)


def test_others_than_loopback_get_the_sites_own_certificate(config: Config) -> None:
    made = tls.prepare(config, NOW)
    assert made.on and made.ca_pem is not None
    pinned = ssl.create_default_context(cadata=made.ca_pem)
    pinned.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("corral.example", "localhost", "127.0.0.1", "::1"):
        assert _handshake(made, pinned, name) == "hello"


def test_who_pinned_another_sites_ca_does_not_trust_this_one(config: Config, tmp_path: Path) -> None:
    made = tls.prepare(config, NOW)
    other = tls.prepare(replace(config, state_dir=tmp_path / "other"), NOW)
    assert other.ca_pem is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(made, ssl.create_default_context(cadata=other.ca_pem), "corral.example")


def test_a_name_the_site_does_not_have_is_not_on_its_certificate(config: Config) -> None:
    made = tls.prepare(config, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(made, ssl.create_default_context(cadata=made.ca_pem), "other.example")


def test_keys_are_readable_by_their_owner_only(config: Config) -> None:
    tls.prepare(config, NOW)
    for file in (config.state_dir / "tls").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((config.state_dir / "tls").stat().st_mode) == 0o700


def test_a_restart_keeps_certificate_and_ca(config: Config) -> None:
    first, second = tls.prepare(config, NOW), tls.prepare(config, NOW + timedelta(days=366))
    assert (first.fingerprint, _serial(first)) == (second.fingerprint, _serial(second))


def test_the_certificate_is_renewed_when_less_than_thirty_days_are_left_and_the_ca_stays(config: Config) -> None:
    first = tls.prepare(config, NOW)
    before = _serial(first)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert not tls.renew(config, first, NOW + timedelta(days=366), context)
    assert tls.renew(config, first, NOW + timedelta(days=368), context)
    assert _serial(first) != before
    assert tls.prepare(config, NOW + timedelta(days=368)).fingerprint == first.fingerprint


def test_a_new_public_name_gets_a_new_certificate_of_the_same_ca(config: Config) -> None:
    first = tls.prepare(config, NOW)
    renamed = tls.prepare(replace(config, public_url="https://gpus.example"), NOW)
    assert renamed.fingerprint == first.fingerprint
    assert _handshake(renamed, ssl.create_default_context(cadata=first.ca_pem), "gpus.example") == "hello"


def test_a_crash_between_key_and_certificate_is_mended(config: Config, tmp_path: Path) -> None:
    made = tls.prepare(config, NOW)
    other = tls.prepare(replace(config, state_dir=tmp_path / "other"), NOW)
    assert made.key is not None and other.key is not None
    made.key.write_bytes(other.key.read_bytes())
    mended = tls.prepare(config, NOW)
    assert _handshake(mended, ssl.create_default_context(cadata=mended.ca_pem), "corral.example") == "hello"


@pytest.mark.parametrize("lost", ["ca.key", "ca.pem"])
def test_a_lost_ca_is_never_replaced_silently(config: Config, lost: str) -> None:
    tls.prepare(config, NOW)
    (config.state_dir / "tls" / lost).unlink()
    with pytest.raises(SetupError, match="back-up"):
        tls.prepare(config, NOW)


def test_given_files_are_served_and_checked(config: Config, tmp_path: Path) -> None:
    own = tls.prepare(config, NOW)
    given = replace(config, state_dir=tmp_path / "other", tls_cert=own.cert, tls_key=own.key)
    assert tls.prepare(given, NOW) == tls.Tls(own.cert, own.key, None)
    with pytest.raises(SetupError, match="expired"):
        tls.prepare(given, NOW + timedelta(days=398))
    with pytest.raises(SetupError, match="both"):
        tls.prepare(replace(given, tls_key=None), NOW)
    with pytest.raises(SetupError, match="cannot be used"):
        tls.prepare(replace(given, tls_key=config.state_dir / "tls" / "ca.key"), NOW)


def test_a_proxy_must_be_named_and_the_sites_address_be_https(config: Config) -> None:
    with pytest.raises(SetupError, match="--trusted-proxy"):
        tls.prepare(replace(config, tls="proxy"), NOW)
    with pytest.raises(SetupError, match="--public-url"):
        tls.prepare(replace(config, tls="proxy", trusted_proxies=("10.0.0.1",), public_url=""), NOW)
    assert not tls.prepare(replace(config, tls="proxy", trusted_proxies=("10.0.0.1",)), NOW).on


@pytest.mark.parametrize(
    ("address", "inside"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("192.0.2.1", False), ("", False), ("nonsense", False)],
)
def test_only_the_named_proxies_are_believed(address: str, inside: bool) -> None:
    assert within(address, networks(["10.0.0.0/8"])) is inside


def test_plain_requests_past_the_proxy_are_refused() -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("in"))])
    guarded = OnlyFrom(app, networks(["10.0.0.1"]))

    async def ask(address: str) -> int:
        transport = httpx.ASGITransport(guarded, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            return (await client.get("/")).status_code

    import asyncio

    assert asyncio.run(ask("10.0.0.1")) == 200
    assert asyncio.run(ask("10.0.0.2")) == 403
