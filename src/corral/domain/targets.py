"""Where the site may send to when a tenant names the address: nowhere that only the site itself can reach.

Whoever may name a URL could otherwise have the control plane knock at its own network (SSRF). A name is resolved once,
every address it has must be a public one, and the connection goes to exactly that address. The operator may open
private networks (`private_targets`); link-local, metadata and translated addresses stay closed even then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from corral.domain.errors import Refusal
from corral.domain.ids import shown

Network = IPv4Network | IPv6Network
URL_MAX = 2000
NETWORKS_MAX = 50
_URL = re.compile(r"[!-~]+")
NOT_REACHED = (
    "No answer: the address cannot be reached from the site or may not be, its certificate is not valid for its name, "
    "or it took too long."
)
"""All that a tenant learns of a connection that failed: more would tell what stands in the site's network."""

_NEVER = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",  # link-local, metadata
        "100.100.100.200/32",  # metadata
        "168.63.129.16/32",  # metadata, in the public range
        "192.88.99.0/24",  # 6to4 relays
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "::/96",  # unspecified, IPv4-compatible; loopback is let through below
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "fd00:ec2::/32",  # metadata
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_PRIVATE = tuple(
    ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_LOOPBACK = IPv6Address("::1")


def may_reach(address: str, opened: Iterable[Network]) -> bool:
    """Return whether the site may connect to an address (as text) that a tenant chose."""
    return is_public(address) or is_opened(address, opened)


def is_public(address: str) -> bool:
    """Return whether it is an address of the public internet. What is no address is not."""
    parsed = _parsed(address)
    if parsed is None or not parsed.is_global or parsed.is_multicast:
        return False
    if isinstance(parsed, IPv6Address) and parsed not in _GLOBAL_UNICAST:
        return False
    return not any(parsed in network for network in (*_NEVER, *_PRIVATE))


def is_opened(address: str, opened: Iterable[Network]) -> bool:
    """Return whether the operator opened the network of an address."""
    parsed = _parsed(address)
    if parsed is None or (parsed != _LOOPBACK and any(parsed in network for network in _NEVER)):
        return False
    return any(parsed in network for network in opened)


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return None if getattr(parsed, "scope_id", None) else parsed


def networks(asked: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks that an operator opens, sorted, each once. Errors: `INVALID_REQUEST`."""
    if len(asked) > NETWORKS_MAX:
        raise Refusal(
            "INVALID_REQUEST", f"private_targets: name at most {NETWORKS_MAX} networks.", field="private_targets"
        )
    found = set()
    for text in asked:
        try:
            found.add(ip_network(text))
        except ValueError:
            raise Refusal(
                "INVALID_REQUEST",
                f"private_targets: {shown(text)} is no network. Write it as 10.0.0.0/8.",
                field="private_targets",
            ) from None
    return tuple(sorted(found, key=lambda network: (network.version, network.network_address, network.prefixlen)))


@dataclass(frozen=True)
class Url:
    """An address to post to. `target` is path and query; `host` without brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The `Host` header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS = {"https": 443, "http": 80}


def url(text: str) -> Url:
    """Return a webhook's URL, taken apart. Whether it may be reached is another question. Errors: `INVALID_URL`."""
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise _no_url(text, "it cannot be read") from None
    if len(text) > URL_MAX or not _URL.fullmatch(text) or "\\" in text:
        raise _no_url(text, f"use at most {URL_MAX} printable ASCII characters, no spaces")
    if parts.scheme not in _PORTS or not host:
        raise _no_url(text, "use https://HOST/PATH")
    if "@" in parts.netloc:
        raise _no_url("with a user name", "leave out user and password: deliveries are signed")
    if parts.fragment or port == 0 or "%" in host:
        raise _no_url(text, "leave out the part after '#', and use a port from 1 to 65535")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.scheme, host, port or _PORTS[parts.scheme], target)


def check_addresses(scheme: str, addresses: Sequence[str], opened: Sequence[Network]) -> None:
    """Check what a host resolved to: every address may be reached, and in the open only an opened one.

    Errors: `INVALID_URL`. The same for a name that does not exist, so that nobody learns which names do.
    """
    good = bool(addresses) and all(may_reach(address, opened) for address in addresses)
    if good and scheme != "https":
        good = all(is_opened(address, opened) for address in addresses)
    if not good:
        raise Refusal(
            "INVALID_URL",
            "This host cannot be told from the site: it needs https, and a public address. "
            "Private networks are opened by the site's operator.",
            field="url",
        )


def _no_url(text: str, why: str) -> Refusal:
    return Refusal("INVALID_URL", f"A URL {shown(text)} cannot be used: {why}.", field="url")
