"""Networks of containers: one bridge for each workspace of each organisation, closed to everything but the way out.

From inside, the host's own ports, the link-local range with the metadata address, and all
other workspaces' networks are unreachable; from outside nothing comes in but answers. One
nftables table for each network holds these rules and goes with it. The network goes when
its last allocation goes. Names follow from ids, so a crash leaves nothing that is not found again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import make_folder, read_text, run, write_atomic

NETNS_DIR = Path("/run/netns")
BRIDGES = "corral-*"
HOST_FORWARD = "ip filter FORWARD"
HOST_LOCK = Path("/run/corral-networks.lock")
"""Agents on one host choose their subnets one after the other."""

_RULES = """
add table inet {table}
delete table inet {table}
table inet {table} {{
  chain input {{
    type filter hook input priority -10; policy accept;
    iifname "{bridge}" drop
  }}
  chain forward {{
    type filter hook forward priority -10; policy accept;
    iifname "{bridge}" oifname "{bridge}" accept
    iifname "{bridge}" meta nfproto ipv6 drop
    iifname "{bridge}" ip saddr != {subnet} drop
    iifname "{bridge}" ip daddr 169.254.0.0/16 drop
    iifname "{bridge}" oifname "{bridges}" drop
    oifname "{bridge}" ct state established,related accept
    oifname "{bridge}" drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {subnet} oifname != "{bridge}" masquerade
  }}
}}
"""


@dataclass(frozen=True)
class Attachment:
    """Where an allocation's container is to be started."""

    netns: Path
    address: str


def _short(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Networks:
    """The networks of one machine's agent."""

    def __init__(self, state_dir: Path, machine: str, pool: str) -> None:
        self._folder = make_folder(state_dir / "networks")
        self._machine = machine
        self._pool = ipaddress.IPv4Network(pool)
        self._lock = threading.Lock()

    def bridge(self, org: str, workspace: str) -> str:
        """Return the name of the workspace's bridge: 15 characters, the kernel's most."""
        return f"corral-{_short(self._machine, org, workspace)[:8]}"

    def netns(self, allocation: str) -> Path:
        return NETNS_DIR / f"corral-{_short(self._machine, allocation)[:16]}"

    def attach(self, allocation: str, org: str, workspace: str) -> Attachment:
        """Make the allocation's network namespace anew and join it to its workspace's bridge."""
        bridge = self.bridge(org, workspace)
        with self._lock:
            network = self._ensure(bridge)
            subnet = ipaddress.IPv4Network(network["subnet"])
            address = network["members"].get(allocation) or _free_address(subnet, network["members"])
            network["members"][allocation] = address
            self._save(bridge, network)
            self._apply_rules(bridge, subnet)
            self._drop_namespace(allocation)
            self._make_namespace(allocation, bridge, f"{address}/{subnet.prefixlen}", str(subnet[1]))
        return Attachment(self.netns(allocation), address)

    def release(self, allocation: str) -> None:
        """Take the allocation off its network, and remove a network that nobody is on any more."""
        with self._lock:
            self._drop_namespace(allocation)
            for bridge, network in self._all():
                if network["members"].pop(allocation, None) is not None:
                    self._save(bridge, network)
                if not network["members"]:
                    self._remove(bridge)

    def collect(self) -> None:
        """Remove networks that a crash left without members."""
        with self._lock:
            for bridge, network in self._all():
                if not network["members"]:
                    self._remove(bridge)

    # -- what is remembered --------------------------------------------------------------

    def _all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in sorted(self._folder.glob("corral-*.json")):
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))

    def _save(self, bridge: str, network: dict[str, Any]) -> None:
        write_atomic(self._folder / f"{bridge}.json", json.dumps(network).encode())

    def _ensure(self, bridge: str) -> dict[str, Any]:
        text = read_text(self._folder / f"{bridge}.json")
        network: dict[str, Any] = json.loads(text) if text else {"subnet": "", "members": {}}
        if Path("/sys/class/net", bridge).exists() and network["subnet"]:
            return network
        with _host_lock():
            subnet = self._choose(bridge, network["subnet"])
            if str(subnet) != network["subnet"]:
                network = {"subnet": str(subnet), "members": {}}
            self._save(bridge, network)
            _make_bridge(bridge, subnet)
        return network

    def _choose(self, bridge: str, before: str) -> ipaddress.IPv4Network:
        """Return the subnet it had, else one of the pool that no route of this host uses."""
        taken = [route for name, route in _routes() if name != bridge]
        taken += [ipaddress.IPv4Network(other["subnet"]) for name, other in self._all() if name != bridge]
        candidates = list(self._pool.subnets(new_prefix=24))
        first = int(_short(bridge)[:8], 16) % len(candidates)
        own = [ipaddress.IPv4Network(before)] if before else []
        for candidate in own + candidates[first:] + candidates[:first]:
            if not any(candidate.overlaps(route) for route in taken):
                return candidate
        raise DriverError(f"every network in {self._pool} is in use on this machine; choose another pool", retry=True)

    # -- what stands in the kernel -------------------------------------------------------

    def _apply_rules(self, bridge: str, subnet: ipaddress.IPv4Network) -> None:
        table = bridge.replace("-", "_")
        run(["nft", "-f", "-"], stdin=_RULES.format(table=table, bridge=bridge, subnet=subnet, bridges=BRIDGES))
        _admit(bridge)
        forwarding = Path("/proc/sys/net/ipv4/ip_forward")
        if forwarding.read_text().strip() != "1":
            # Where the host forbids it, containers have no way out; everything else works.
            with contextlib.suppress(OSError):
                forwarding.write_text("1")

    def _veth(self, allocation: str) -> str:
        return f"crl{_short(self._machine, allocation)[:12]}"

    def _make_namespace(self, allocation: str, bridge: str, address: str, gateway: str) -> None:
        name, veth, mtu = self.netns(allocation).name, self._veth(allocation), _mtu(bridge)
        run(["ip", "netns", "add", name])
        run(
            ["ip", "-batch", "-"],
            stdin=f"link add {veth} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {name}\n"
            f"link set {veth} master {bridge} up\n",
        )
        run(
            ["ip", "-netns", name, "-batch", "-"],
            stdin=f"link set lo up\naddr add {address} dev eth0\nlink set eth0 up\nroute add default via {gateway}\n",
        )

    def _drop_namespace(self, allocation: str) -> None:
        # The kernel removes a dead namespace's links some time later; this end goes at once.
        _drop_link(self._veth(allocation))
        if self.netns(allocation).exists():
            run(["ip", "netns", "del", self.netns(allocation).name])

    def _remove(self, bridge: str) -> None:
        _drop_link(bridge)
        _admit_no_more(bridge)
        table = bridge.replace("-", "_")
        run(["nft", "-f", "-"], stdin=f"add table inet {table}\ndelete table inet {table}\n")
        (self._folder / f"{bridge}.json").unlink(missing_ok=True)


@contextlib.contextmanager
def _host_lock() -> Iterator[None]:
    with HOST_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _admit(bridge: str) -> None:
    """Let the bridge's packets pass a host firewall that forwards nothing by itself, as Docker and ufw set it up.

    Our own table cannot: a packet must pass all tables. What may pass at all is decided there.
    """
    chain = _host_forward_chain()
    if "policy drop" not in chain or f'"{bridge}"' in chain:
        return
    rules = (f'iifname "{bridge}" accept', f'oifname "{bridge}" ct state established,related accept')
    run(["nft", "-f", "-"], stdin="".join(f"insert rule {HOST_FORWARD} {rule}\n" for rule in rules))


def _admit_no_more(bridge: str) -> None:
    lines = [line for line in _host_forward_chain().splitlines() if f'"{bridge}"' in line]
    handles = [line.rpartition("# handle ")[2] for line in lines]
    run(["nft", "-f", "-"], stdin="".join(f"delete rule {HOST_FORWARD} handle {handle}\n" for handle in handles))


def _host_forward_chain() -> str:
    """Return the rules of iptables' own FORWARD chain with their handles, "" where the host has none."""
    try:
        return run(["nft", "-a", "list", "chain", *HOST_FORWARD.split()])
    except DriverError as error:
        if "No such file" in error.message:
            return ""
        raise


def _make_bridge(bridge: str, subnet: ipaddress.IPv4Network) -> None:
    _drop_link(bridge)
    run(
        ["ip", "-batch", "-"],
        stdin=f"link add {bridge} mtu {_default_mtu()} type bridge\n"
        f"addr add {subnet[1]}/{subnet.prefixlen} dev {bridge}\nlink set {bridge} up\n",
    )


def _drop_link(name: str) -> None:
    if Path("/sys/class/net", name).exists():
        run(["ip", "link", "del", name])


def _free_address(subnet: ipaddress.IPv4Network, members: dict[str, str]) -> str:
    used = set(members.values()) | {str(subnet[1])}
    for host in subnet.hosts():
        if str(host) not in used:
            return str(host)
    raise DriverError(f"the workspace's network {subnet} has no free address", retry=True)


def _routes() -> list[tuple[str, ipaddress.IPv4Network]]:
    """Return (interface, network) of each IPv4 route of this host but the default one."""
    found = []
    for line in read_text(Path("/proc/net/route")).splitlines()[1:]:
        fields = line.split()
        network, mask = (int.from_bytes(bytes.fromhex(fields[i]), "little") for i in (1, 7))
        if mask:
            found.append((fields[0], ipaddress.IPv4Network((network, bin(mask).count("1")), strict=False)))
    return found


def _default_mtu() -> int:
    """Return the MTU of the interface of the default route: a larger one inside would lose packets."""
    for line in read_text(Path("/proc/net/route")).splitlines()[1:]:
        name, destination = line.split()[:2]
        if destination == "00000000":
            return _mtu(name)
    return 1500


def _mtu(interface: str) -> int:
    return int(read_text(Path("/sys/class/net", os.fspath(interface), "mtu")).strip() or 1500)
