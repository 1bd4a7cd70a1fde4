"""What one allocation's container is to be, in the words of Podman's own API (spec 40, "Running containers").

No network of the host, no privileged mode, no runtime socket, no host path but the
toolbox, the allocation's own folders, and its drives read-only. Limits are always sent: vCPU as period and
quota, memory without swap, processes, shared memory. The image's ENTRYPOINT and CMD are not
run: a compute cluster is a place to work in, so its first process only waits and reaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.agent.drivers import cdi, containerlog, drive_mounts, sshd, toolbox
from corral.agent.drivers.networks import Attachment
from corral.protocol.messages import DesiredAllocation

CPU_PERIOD_US = 100_000
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",  # sshd's privilege separation
)
"""All others are dropped: no raw sockets, no device nodes, no mounts, no audit writes."""

LABEL_MACHINE = "corral.machine"
LABEL_ALLOCATION = "corral.allocation"
LABEL_GPUS = "corral.gpus"


@dataclass(frozen=True)
class Place:
    """What was prepared on the machine for one container."""

    rootfs: Path
    folder: Path
    toolbox: Path
    network: Attachment | None
    etc: Mapping[Path, str]
    """Files laid over the image's own: where they are, and where they go (`etc_files`)."""
    image_env: Mapping[str, str]
    drives: Mapping[str, Path]
    """Folders of drives, by name."""
    limits: Mapping[str, int]
    """Hard limits "nofile" and "nproc": both are sent, because sending one drops the other's default."""


def container_name(allocation: str) -> str:
    return f"corral-{allocation}"


def labels(want: DesiredAllocation, machine: str) -> dict[str, str]:
    return {
        LABEL_MACHINE: machine,
        "corral.org": want.org,
        "corral.workspace": want.workspace,
        "corral.workload": want.workload,
        LABEL_ALLOCATION: want.id,
        "corral.generation": str(want.generation),
        "corral.kind": want.kind,
        LABEL_GPUS: ",".join(want.gpus),
    }


def create_body(want: DesiredAllocation, machine: str, place: Place) -> dict[str, Any]:
    """Return the body of `POST /libpod/containers/create`."""
    memory = want.ram_mib << 20
    return {
        "name": container_name(want.id),
        "hostname": want.name,
        "labels": labels(want, machine),
        "rootfs": str(place.rootfs),
        "entrypoint": [],
        "command": list(toolbox.KEEPER),
        "env": {"PATH": DEFAULT_PATH, **place.image_env, **want.env},
        "work_dir": "/",
        "user": "0:0",
        "init": False,
        "privileged": False,
        "no_new_privileges": True,
        "cap_drop": ["ALL"],
        "cap_add": [f"CAP_{name}" for name in CAPABILITIES],
        "restart_policy": "no",
        "stop_signal": 15,
        "shm_size": want.shm_mib << 20,
        "resource_limits": {
            "cpu": {"period": CPU_PERIOD_US, "quota": want.vcpu * CPU_PERIOD_US},
            "memory": {"limit": memory, "swap": memory},
            "pids": {"limit": want.pids},
        },
        "r_limits": [{"type": name.upper(), "hard": limit, "soft": limit} for name, limit in place.limits.items()],
        "devices": [{"path": cdi.device_name(uuid)} for uuid in want.gpus],
        "mounts": _mounts(place),
        "log_configuration": {
            "driver": "k8s-file",
            "path": str(place.folder / containerlog.NAME),
            "size": containerlog.MAX_BYTES,
        },
        **_network(place),
    }


def _mounts(place: Place) -> list[dict[str, Any]]:
    read_only = ["ro", "rbind", "nosuid", "nodev"]
    return [
        {"type": "bind", "source": str(place.toolbox), "destination": toolbox.MOUNT, "options": read_only},
        {"type": "bind", "source": str(place.folder / "ssh/etc"), "destination": sshd.MOUNT, "options": read_only},
        {
            "type": "tmpfs",
            "source": "tmpfs",
            "destination": sshd.PRIVSEP_DIR,
            "options": ["mode=0755", "size=64k", "nosuid", "nodev", "noexec"],
        },
        *(
            {"type": "bind", "source": str(source), "destination": to, "options": ["rw", "bind", "nosuid", "nodev"]}
            for source, to in place.etc.items()
        ),
        *(
            {
                "type": "bind",
                "source": str(source),
                "destination": drive_mounts.inside(name),
                "options": drive_mounts.OPTIONS,
            }
            for name, source in place.drives.items()
        ),
    ]


def _network(place: Place) -> dict[str, Any]:
    if place.network is None:
        return {"netns": {"nsmode": "none"}}
    return {"netns": {"nsmode": "path", "value": str(place.network.netns)}}
