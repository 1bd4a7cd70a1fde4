"""What may be asked for, and what ssh says of itself (spec 20)."""

from __future__ import annotations

from typing import Any

import pytest

from corral.domain.compute_clusters import Creation, check, ssh_status
from corral.domain.errors import Refusal
from corral.domain.workloads import State


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", -1),
        ("gpus", 1025),
        ("vcpu", 0),
        ("ram_gib", 0),
        ("storage_gib", 0),
        ("storage_gib", 2_000_001),
        ("time_limit_seconds", 59),
        ("machine", ""),
        ("pool", "a\x00b"),
        ("gpu_model", "x" * 101),
        ("image", "dir:/etc"),
        ("image", "docker-archive:/root/secret.tar"),
        ("image", "a b"),
        ("image", "x" * 301),
        ("ssh_keys", ["\u202e"]),
        ("ssh_keys", ["k"] * 101),
        ("drives", [f"d{number}" for number in range(17)]),
        ("drives", ["twice", "twice"]),
        ("restart_policy", "always"),
        ("restart_policy", ""),
    ],
)
def test_what_is_out_of_range_is_refused_naming_the_field(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as refused:
        check(Creation("dev", **{field: value}))
    assert (refused.value.code, refused.value.details["field"]) == ("INVALID_REQUEST", field)


@pytest.mark.parametrize("name", ["", "Dev", "a/b", "..", "a\x00", "\u202eabc", "x" * 300])
def test_a_name_is_a_short_name(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(Creation(name))
    assert refused.value.code == "INVALID_NAME"


@pytest.mark.parametrize(
    "image",
    ["busybox", "localhost/corral/base:latest", "registry.example:5000/a/b_c:1.2", "x@sha256:" + "a" * 64],
)
def test_registry_references_are_images(image: str) -> None:
    check(Creation("dev", image=image))


def test_ssh_names_the_first_reason_it_cannot_work() -> None:
    assert ssh_status(State.PROVISIONING, False, True, True) == "not active"
    assert ssh_status(State.ACTIVE, True, True, True) == "not active"
    assert ssh_status(State.ACTIVE, False, False, False) == "no key"
    assert ssh_status(State.ACTIVE, False, True, False) == "machine unreachable"
    assert ssh_status(State.ACTIVE, False, True, True) == "ready"


@pytest.mark.parametrize("name", ["", "..", "a/b", "Weights", "-a", "x" * 64, "a\0"])
def test_a_drives_name_is_a_short_name(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(Creation("dev", drives=[name]))
    assert refused.value.code == "INVALID_NAME"


def test_sixteen_drives_may_be_asked_for() -> None:
    check(Creation("dev", drives=[f"d{number}" for number in range(16)], restart_policy="on_machine_loss"))
