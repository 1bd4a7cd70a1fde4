"""Which device nodes belong to which GPU (Container Device Interface), and which GPUs a container really has.

GPUs are given by UUID through CDI; after every start the devices inside are compared with
the specification: exactly the GPUs that were given must be there (spec 40, "Running containers").
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.agent.drivers import cdi_yaml
from corral.agent.drivers.base import DriverError

KIND = "nvidia.com/gpu"
HOST_DIRS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where Podman itself looks; later folders win."""

_GPU_NODE = re.compile(r"nvidia\d+")
_STANDARD = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
"""Devices that every container has."""


@dataclass(frozen=True)
class Node:
    """A device in a container's /dev: its name there, and the number by which the kernel knows it."""

    name: str
    major: int
    minor: int


Specification = Mapping[str, frozenset[Node]]
"""GPU name (its UUID) -> its /dev/nvidia<N> nodes."""


def device_name(uuid: str) -> str:
    return f"{KIND}={uuid}"


def read(folders: Sequence[Path]) -> Specification:
    """Read every CDI specification in `folders`; DriverError naming a file that cannot be understood."""
    found: dict[str, frozenset[Node]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in (".json", ".yaml", ".yml"):
                found.update(_read_file(path))
    return found


def _read_file(path: Path) -> Specification:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else cdi_yaml.load(text)
        if document.get("kind") != KIND:
            return {}
        return {str(device["name"]): _gpu_nodes(device) for device in document.get("devices") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DriverError(f"the CDI specification {path} cannot be read: {error}; write it again") from error


def _gpu_nodes(device: Mapping[str, Any]) -> frozenset[Node]:
    nodes = (device.get("containerEdits") or {}).get("deviceNodes") or ()
    return frozenset(_as_inside(node) for node in nodes if _GPU_NODE.fullmatch(Path(str(node["path"])).name))


def _as_inside(node: Mapping[str, Any]) -> Node:
    """Return the node with its number: as written, else as the host's own device has it."""
    name = Path(str(node["path"])).name
    if "major" in node and "minor" in node:
        return Node(name, int(node["major"]), int(node["minor"]))
    number = Path(str(node.get("hostPath") or node["path"])).stat().st_rdev
    return Node(name, os.major(number), os.minor(number))


def check_known(specification: Specification, uuids: Iterable[str]) -> None:
    """Refuse GPUs that no CDI specification names, before anything is started."""
    unknown = [uuid for uuid in uuids if not specification.get(uuid)]
    if unknown:
        raise DriverError(
            f"no CDI specification on this machine names GPU {', '.join(unknown)}; "
            "run: nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
        )


def devices_in(dev: Path, specification: Specification) -> frozenset[Node]:
    """Return all GPU devices in a container's /dev: by name, and by a GPU's number under any other name.

    A link in its place is refused: seen from the host it would lead to a folder of the host.
    """
    known = {(node.major, node.minor) for nodes in specification.values() for node in nodes}
    found = set()
    for name, status in _entries(dev):
        if stat.S_ISCHR(status.st_mode) and name not in _STANDARD:
            number = (os.major(status.st_rdev), os.minor(status.st_rdev))
            if number in known or _GPU_NODE.fullmatch(name):
                found.add(Node(name, *number))
    return frozenset(found)


def _entries(dev: Path) -> list[tuple[str, os.stat_result]]:
    try:
        fd = os.open(dev, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise DriverError("the image's /dev is not a folder; use an image with a plain /dev") from error
        raise
    try:
        with os.scandir(fd) as entries:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(fd)


def verify(specification: Specification, given: Sequence[str], found: frozenset[Node]) -> tuple[str, ...]:
    """Return the GPUs that are inside, in the order given; DriverError unless they are exactly those given."""
    wanted = frozenset(node for uuid in given for node in specification[uuid])
    if found == wanted:
        return tuple(given)
    inside = [u for u, nodes in specification.items() if u.startswith(("GPU-", "MIG-")) and nodes and nodes <= found]
    strangers = len(found - wanted)
    raise DriverError(
        f"the GPUs inside are not those given: given {', '.join(given) or 'none'}; found {', '.join(inside) or 'none'} "
        f"({len(wanted - found)} of the given devices missing, {strangers} too many). "
        "Write the CDI specification again (nvidia-ctk cdi generate) and create the cluster again."
    )
