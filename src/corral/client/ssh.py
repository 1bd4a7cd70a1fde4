"""How the user's own ssh reaches a compute cluster (spec 20, "Connect"): options, Host blocks, local keys.

ssh gets its bytes from a ProxyCommand, and the cluster's host key from a file that this
command writes before the first byte passes: the control plane says the pin over verified TLS.
Standard library only: the proxy imports it and must start quickly.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.client import config

_HOST_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp\d+|ssh-rsa) [A-Za-z0-9+/=]+")


@dataclass(frozen=True)
class Cluster:
    """One compute cluster as its path names it."""

    site: str
    """The site's base URL; its token and CA stand in the configuration."""
    org: str
    workspace: str
    name: str

    @property
    def alias(self) -> str:
        """The name its host key is pinned under, also a host name ssh understands."""
        return f"{self.name}.{self.workspace}.{self.org}.corral"

    @property
    def stream_path(self) -> str:
        return f"/api/v1/orgs/{self.org}/workspaces/{self.workspace}/compute-clusters/{self.name}/stream"


def folder() -> Path:
    """Where the pins and the written ssh configuration stand."""
    return config.path().parent


def pin_file(cluster: Cluster) -> Path:
    return folder() / "hosts" / cluster.alias


def write_pin(cluster: Cluster, host_key: str) -> None:
    """Write the known-hosts file of one cluster, whole or not at all. Errors: `ValueError` for what is no host key."""
    match = _HOST_KEY.match(host_key)
    if match is None:
        raise ValueError("the machine has not reported a host key")
    file, line = pin_file(cluster), f"{cluster.alias} {match[0]}\n"
    if file.is_file() and file.read_text() == line:
        return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f".{cluster.name}.{os.getpid()}")
    new.write_text(line)
    new.replace(file)


def options(cluster: Cluster, keys: Collection[Path] = ()) -> list[tuple[str, str]]:
    """Return the ssh options of one cluster, in order. `keys` are private keys to offer."""
    command = [sys.executable, "-m", "corral.cli.proxy", cluster.site, cluster.org, cluster.workspace, cluster.name]
    if os.environ.get("CORRAL_CONFIG"):
        command = ["env", f"CORRAL_CONFIG={Path(os.environ['CORRAL_CONFIG']).absolute()}", *command]
    pairs = [
        ("User", "root"),
        ("HostName", cluster.alias),
        ("HostKeyAlias", cluster.alias),
        ("ProxyCommand", shlex.join(command).replace("%", "%%")),
        ("UserKnownHostsFile", _quoted(pin_file(cluster))),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
    ]
    pairs += [("IdentityFile", _quoted(key)) for key in keys]
    return pairs


def host_block(cluster: Cluster, keys: Collection[Path] = ()) -> str:
    """Return the `Host` block that makes `ssh NAME`, scp, sftp, rsync and IDEs work as they are."""
    lines = [f"Host {cluster.name} {cluster.alias}"]
    lines += [f"    {key} {value}" for key, value in options(cluster, keys)]
    return "\n".join(lines) + "\n"


def command(cluster: Cluster, keys: Collection[Path], arguments: list[str], remote: list[str]) -> list[str]:
    """Return the ssh command line for one cluster; `arguments` are passed to ssh, `remote` is run there."""
    line = ["ssh"]
    for key, value in options(cluster, keys):
        line += ["-o", f"{key}={value}"]
    return [*line, *arguments, cluster.alias, *remote]


def fingerprint(public_key: str) -> str | None:
    """Return OpenSSH's SHA256 fingerprint of a public key line (None: it is none)."""
    words = public_key.split()
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, ValueError):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def local_keys(fingerprints: Collection[str], home: Path | None = None) -> list[Path]:
    """Return the private keys in `~/.ssh` whose public half has one of these fingerprints."""
    found = []
    for public, mark in _public_keys(home or Path.home()):
        private = public.with_suffix("")
        if mark in fingerprints and private.is_file():
            found.append(private)
    return found


def agent_has(fingerprints: Collection[str]) -> bool:
    """Return whether the user's ssh-agent holds one of these keys."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return False
    try:
        listed = subprocess.run(["ssh-add", "-L"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(fingerprint(line) in fingerprints for line in listed.splitlines())


def _public_keys(home: Path) -> Iterator[tuple[Path, str]]:
    for public in sorted((home / ".ssh").glob("*.pub")):
        try:
            mark = fingerprint(public.read_text(errors="replace"))
        except OSError:
            continue
        if mark is not None:
            yield public, mark


def _quoted(path: Path) -> str:
    """Quote a path for ssh's configuration, where `%` is special too."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
