"""The files a runtime lays over a container's own: hosts, resolv.conf, hostname, .containerenv.

Podman would keep them in its run folder and mount them writable, so a tenant could fill the
host's /run past every quota. These stand on the allocation's own disk, beside what the
overlay writes: the tenant may change them, and their size counts as the tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from corral.agent.drivers.base import DriverError
from corral.agent.drivers.host import make_folder, read_text, write_atomic

DESTINATIONS = {
    "hosts": "/etc/hosts",
    "resolv.conf": "/etc/resolv.conf",
    "hostname": "/etc/hostname",
    "containerenv": "/run/.containerenv",
}
RESOLVERS = (Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf"))
"""The host's own name servers; systemd-resolved keeps the real ones in the first."""


def prepare(folder: Path, name: str, address: str | None) -> dict[Path, str]:
    """Write the files anew; return source -> destination. `address`: the container's own (None: no network)."""
    make_folder(folder, 0o755)
    texts = {
        "hosts": _hosts(name, address),
        "resolv.conf": resolvers([read_text(path) for path in RESOLVERS]) if address else "",
        "hostname": f"{name}\n",
        "containerenv": "",
    }
    for file, text in texts.items():
        try:
            write_atomic(folder / file, text.encode(), 0o644)
        except DriverError:
            # A tenant's full disk must not keep their work from being started again with the old ones.
            if not (folder / file).is_file():
                raise
    return {folder / file: DESTINATIONS[file] for file in texts}


def _hosts(name: str, address: str | None) -> str:
    own = [f"{address} {name}"] if address else [f"127.0.1.1 {name}"]
    return "\n".join(["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", *own]) + "\n"


def resolvers(files: Sequence[str]) -> str:
    """Return the first file's name servers and search list that a container can reach: none on the host's loopback."""
    for text in files:
        lines = [line.split() for line in text.splitlines()]
        servers = [w for w in lines if len(w) > 1 and w[0] == "nameserver" and not w[1].startswith(("127.", "::1"))]
        if servers:
            kept = servers + [w for w in lines if w and w[0] in ("search", "options")]
            return "".join(" ".join(words) + "\n" for words in kept)
    return ""
