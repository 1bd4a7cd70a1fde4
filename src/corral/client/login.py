"""Logging in: a link or a password becomes a token, and the site's CA is pinned by the link's fingerprint.

A link is `https://HOST/login#corl_…&ca=<sha256 of the CA's DER, hex>`. What follows `#` is never
sent as part of an address. With `ca` the site's CA is fetched without trust, compared, and from
then on is all that is trusted; without it the system's own trust decides.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlsplit

import httpx

from corral.client.config import Site
from corral.client.decode import decode
from corral.client.errors import UNTRUSTED, CorralError
from corral.client.models import LoggedIn
from corral.client.transport import Transport, unreachable


@dataclass(frozen=True)
class Link:
    """What stands in a link, or a plain address (`secret` None)."""

    url: str
    secret: str | None
    ca: str | None
    """SHA-256 of the CA certificate's DER, lower case hex."""


def parse_link(text: str) -> Link:
    """Return what a link or address says. Errors: `CorralError` `INVALID_LINK`."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CorralError(
            "INVALID_LINK", "That is no link or address of a site. Copy all of it: https://…/login#corl_…"
        )
    if parts.username is not None or parts.query:
        raise CorralError("INVALID_LINK", "That address has parts that no site's has. Copy the link again.")
    secret, _, rest = parts.fragment.partition("&")
    ca = dict(parse_qsl(rest)).get("ca")
    if ca is not None and not (len(ca) == 64 and all(c in "0123456789abcdef" for c in ca.lower())):
        raise CorralError("INVALID_LINK", "The link's ca= is cut short or mistyped. Copy all of it.")
    path = parts.path.removesuffix("/login").rstrip("/")
    return Link(f"{parts.scheme}://{parts.netloc}{path}", secret or None, ca.lower() if ca else None)


def site_of(link: Link, known_ca: str | None = None) -> Site:
    """Return how to reach the link's site, with its CA fetched and compared where the link pins one.

    `known_ca`: what was pinned for this site before. Errors: `CorralError` `UNTRUSTED`, `PLAIN_HTTP`.
    """
    if link.url.startswith("http://") and not _loopback(link.url):
        raise CorralError(
            "PLAIN_HTTP", f"{link.url} is not encrypted: anybody on the way could take your token. Use https."
        )
    if link.ca is None:
        return Site(link.url, ca=known_ca)
    return Site(link.url, ca=fetch_ca(link.url, link.ca))


def fetch_ca(url: str, fingerprint: str) -> str:
    """Return the site's CA certificate (PEM) when its fingerprint is this one. Errors: `CorralError`."""
    try:
        # Not verified: nothing is trusted yet, and the answer is compared with the pin.
        with httpx.Client(verify=False, timeout=10.0) as http:  # noqa: S501
            answer = http.get(f"{url}/api/v1/ca.pem")
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise unreachable(url, error) from error
    try:
        pem = answer.text
        found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError:
        found, pem = "", ""
    if not hmac.compare_digest(found, fingerprint):
        raise CorralError(
            UNTRUSTED,
            f"{url} does not show the CA that the link names: this is another site, or somebody is in between. "
            "Do not log in; ask for a new link by a way you trust.",
        )
    return pem


def use_link(site: Site, secret: str, *, login: str | None, name: str | None, password: str | None) -> LoggedIn:
    """Use a one-time link. With a token in `site`, its owner accepts an invitation and keeps the token."""
    body = {"link": f"{site.url}/login#{secret}", "login": login, "name": name, "password": password}
    return _log_in(site, "/api/v1/login/link", body)


def by_password(site: Site, login: str, password: str) -> LoggedIn:
    return _log_in(replace(site, token=None), "/api/v1/login", {"login": login, "password": password})


def _log_in(site: Site, path: str, body: dict[str, str | None]) -> LoggedIn:
    transport = Transport(site)
    try:
        given = {key: value for key, value in body.items() if value is not None}
        return decode(LoggedIn, transport.call("POST", path, given, once=True))
    finally:
        transport.close()


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
