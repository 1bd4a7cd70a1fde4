"""The machine's network: speed of its fastest physical link, and its addresses (spec 40, "Reporting")."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from corral.agent.inventory.files import read_int, read_text

INTERNAL = re.compile(r"(lo|docker|podman|cni|veth|virbr|br-[0-9a-f]{12}|cali|flannel|vnet|corral)")
"""Interfaces that exist on this machine only: what is reachable there says nothing to others."""
SIOCGIFCONF = 0x8912
IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32
MAX_ADDRESSES = 256


def fastest_mbps(root: Path = Path("/")) -> int:
    """Return the speed of the fastest physical link that is up, in Mbit/s; 0 = not known (as in most VMs)."""
    try:
        links = sorted((root / "sys/class/net").iterdir())
    except OSError:
        return 0
    return max((_mbps(link) for link in links), default=0)


def _mbps(link: Path) -> int:
    if not (link / "device").exists():  # a bridge, bond, tunnel: its speed is that of links we count themselves
        return 0
    state = read_text(link, "operstate")
    if state != "up" and not (state == "unknown" and read_int(link, "carrier") == 1):
        return 0
    speed = read_int(link, "speed") or 0
    return speed if 0 < speed < 0xFFFFFFFF else 0  # -1 and all ones both mean "not known"


def addresses(root: Path = Path("/"), list_ipv4: Callable[[], list[tuple[str, str]]] | None = None) -> tuple[str, ...]:
    """Return the machine's addresses of global scope: IPv4, then IPv6, each in numeric order."""
    try:
        v4 = (list_ipv4 or ipv4_addresses)()
    except OSError:
        v4 = []
    both = [*v4, *_ipv6_addresses(root)]
    found = {ip for name, text in both if not INTERNAL.match(name) and (ip := _global(text)) is not None}
    return tuple(str(ip) for ip in sorted(found, key=lambda ip: (ip.version, int(ip))))


def ipv4_addresses() -> list[tuple[str, str]]:
    """Return (interface, address) of every IPv4 address, secondary ones too, as the kernel lists them."""
    space = array.array("B", bytes(IFREQ_BYTES * MAX_ADDRESSES))
    request = struct.pack("iP", len(space), space.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        used = struct.unpack("iP", fcntl.ioctl(sock.fileno(), SIOCGIFCONF, request))[0]
    raw = space.tobytes()[:used]
    rows = (raw[i : i + IFREQ_BYTES] for i in range(0, len(raw), IFREQ_BYTES))
    return [(row[:16].split(b"\0")[0].decode("ascii", "replace"), socket.inet_ntoa(row[20:24])) for row in rows]


def _ipv6_addresses(root: Path) -> list[tuple[str, str]]:
    rows = (line.split() for line in read_text(root, "proc/net/if_inet6").splitlines())
    found = []
    for row in rows:  # address, interface number, prefix length, scope (00 = global), flags, interface
        if len(row) == 6 and row[3] == "00" and len(row[0]) == 32:
            with contextlib.suppress(ValueError):
                found.append((row[5], str(ipaddress.IPv6Address(int(row[0], 16)))))
    return found


def _global(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast else ip
