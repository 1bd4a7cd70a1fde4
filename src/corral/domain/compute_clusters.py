"""What may be asked for when a compute cluster is created, and whether ssh into it can work (spec 20)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from corral.domain import ids
from corral.domain.errors import Refusal
from corral.domain.resources import MIB_PER_GIB, Ask
from corral.domain.workloads import RestartPolicy, State

BASE_IMAGE = "localhost/corral/base:latest"
"""The site's base image: machines build it from their own packages where no registry serves it."""

RANGES = {
    "gpus": (0, 1_024),
    "vcpu": (1, 65_536),
    "ram_gib": (1, 1_000_000),
    "storage_gib": (1, 2_000_000),
    "time_limit_seconds": (60, 315_360_000),
}
"""Inclusive."""

MAX_KEYS = 100
MAX_DRIVES = 16
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{{1,5}})?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""A registry's reference only: no transport like `dir:/etc`, which would read a machine's own files."""


@dataclass(frozen=True)
class Creation:
    """What was asked for, as it was written; None = the default."""

    name: str
    cluster: str | None = None
    machine: str | None = None
    pool: str | None = None
    gpu_model: str | None = None
    wait: bool = False
    gpus: int = 0
    vcpu: int | None = None
    ram_gib: int | None = None
    storage_gib: int | None = None
    image: str | None = None
    ssh_keys: Sequence[str] | None = None
    """Names or ids of the caller's keys; None = all of them."""
    time_limit_seconds: int | None = None
    drives: Sequence[str] = ()
    """Names of drives kept on each machine: read-only at /drives/NAME."""
    restart_policy: str = RestartPolicy.NEVER.value

    @property
    def ask(self) -> Ask:
        return Ask(self.gpus, self.vcpu, _mib(self.ram_gib), _mib(self.storage_gib))


def _mib(gib: int | None) -> int | None:
    return None if gib is None else gib * MIB_PER_GIB


def check(creation: Creation) -> None:
    """Refuse what could never be. Errors: `INVALID_NAME`, `INVALID_REQUEST` naming the field."""
    ids.slug(creation.name, "compute cluster's name")
    for field, (least, most) in RANGES.items():
        value = getattr(creation, field)
        if value is not None and not least <= value <= most:
            raise _invalid(field, f"{value} is not between {least} and {most}")
    for field in ("machine", "pool", "gpu_model", "cluster"):
        value = getattr(creation, field)
        if value is not None and (not 1 <= len(value) <= 100 or not value.isprintable()):
            raise _invalid(field, f"{ids.shown(value)} is not 1 to 100 printable characters")
    if creation.image is not None and (len(creation.image) > 300 or _IMAGE.fullmatch(creation.image) is None):
        raise _invalid(
            "image", f"{ids.shown(creation.image)} is no image reference like registry.example/team/image:tag"
        )
    if creation.ssh_keys is not None:
        check_keys("ssh_keys", creation.ssh_keys)
    _check_drives(creation.drives)
    policies = [policy.value for policy in RestartPolicy]
    if creation.restart_policy not in policies:
        raise _invalid("restart_policy", f"{ids.shown(creation.restart_policy)} is none of {', '.join(policies)}")


def _check_drives(named: Sequence[str]) -> None:
    if len(named) > MAX_DRIVES:
        raise _invalid("drives", f"more than {MAX_DRIVES} drives")
    for name in named:
        ids.slug(name, "drive's name")
    if len(set(named)) < len(named):
        raise _invalid("drives", "a drive is named twice")


def check_keys(field: str, named: Sequence[str]) -> None:
    """Refuse what cannot name keys. Errors: `INVALID_REQUEST`."""
    if len(named) > MAX_KEYS:
        raise _invalid(field, f"more than {MAX_KEYS} keys")
    for name in named:
        if not 1 <= len(name) <= 300 or not name.isprintable():
            raise _invalid(field, f"{ids.shown(name)} is no key's name, id or fingerprint")


def _invalid(field: str, what: str) -> Refusal:
    return Refusal("INVALID_REQUEST", f"{field}: {what}. Correct it and send the request again.", field=field)


READY, NO_KEY, NOT_ACTIVE, UNREACHABLE = "ready", "no key", "not active", "machine unreachable"


def ssh_status(state: State, stop_asked: bool, has_key: bool, connected: bool) -> str:
    """Say whether ssh can work for somebody, and if not, why: the first reason that they would meet."""
    if (state is not State.ACTIVE and state is not State.OUT_OF_SYNC) or stop_asked:
        return NOT_ACTIVE
    if not has_key:
        return NO_KEY
    return READY if connected else UNREACHABLE
