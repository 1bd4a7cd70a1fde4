"""How the agent reaches its site: one base URL, the pinned CA, no plain HTTP but on loopback (spec 05, "TLS")."""

from __future__ import annotations

import ipaddress
import ssl
import urllib.request
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from typing import IO
from urllib.parse import SplitResult, urlsplit


class BadUrl(ValueError):
    """The message says what is wrong with the URL and what a good one looks like."""


@dataclass(frozen=True)
class Site:
    url: str
    """Base URL, e.g. "https://corral.example.com"; no slash at its end."""
    ca: str = ""
    """CA certificates (PEM) that alone are trusted; "" = the system's."""

    @classmethod
    def at(cls, url: str, ca: str = "") -> Site:
        """Return the site at `url`. Errors: `BadUrl`."""
        clean = url.strip().rstrip("/")
        parts = _split(clean)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadUrl(f"{clean!r} is not the address of a site; it looks like https://corral.example.com")
        if parts.username or parts.password:
            raise BadUrl("the site's address holds no user name or password")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise BadUrl(f"{clean} is not encrypted; use https:// (plain http:// only works on this machine itself)")
        return cls(clean, ca)

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings; None on plain HTTP. Errors: `BadUrl` when the CA is not one."""
        if not self.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cadata=self.ca or None)
        except (ssl.SSLError, ValueError) as error:
            raise BadUrl("the CA file holds no PEM certificate; fetch it again from the site") from error

    @cached_property
    def http(self) -> urllib.request.OpenerDirector:
        """What asks the site over HTTP: trusts what `tls` does, goes through the environment's proxy, follows nothing.

        Errors: `BadUrl`.
        """
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self.tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self.tls))
        return urllib.request.build_opener(*handlers)

    def websocket(self, target: str) -> str:
        """Return the URL of a WebSocket at `target`: a path of this site, or a whole URL that is no less secure.

        Errors: `BadUrl`.
        """
        if target.startswith("/"):
            return "ws" + self.url[len("http") :] + target
        parts = _split(target)
        plain_allowed = self.url.startswith("http:") and is_loopback(parts.hostname or "")
        if parts.hostname and (parts.scheme == "wss" or (parts.scheme == "ws" and plain_allowed)):
            return target
        raise BadUrl(f"{target!r} is not a WebSocket of this site")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token and a key go to the site that was named, and a release comes from there, and from no other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise BadUrl(f"{url!r} is not a URL") from error
    return parts
