"""Which labels are welcome (spec 10, "Join tokens")."""

from __future__ import annotations

import pytest

from corral.domain import labels
from corral.domain.errors import Refusal


def code(given: dict[str, object]) -> str:
    with pytest.raises(Refusal) as refused:
        labels.checked(given)
    return refused.value.code


def test_placement_labels_and_the_organisations_own_are_welcome() -> None:
    given = {
        "pool": "h100",
        "site": "ams:1",
        "rack": "r/7",
        "fabric": "ib-0",
        "team.owner": "Research_2",
        "a": "x" * 63,
    }
    assert labels.checked(given) == given


@pytest.mark.parametrize(
    "key",
    [
        "corral",
        "corral.x",
        "gpu",
        "gpus",
        "gpu-model",
        "cpu",
        "cpu.cores",
        "memory_mib",
        "arch",
        "os",
        "kernel",
        "driver",
        "drivers",
        "cuda12",
        "hostname",
        "machine",
        "machine-name",
        "node",
        "nodes",
        "cluster",
        "org",
        "workspace",
    ],
)
def test_keys_that_corral_sets_are_reserved(key: str) -> None:
    assert code({key: "x"}) == "RESERVED_LABEL"


@pytest.mark.parametrize(
    "key", ["corrals", "archive", "osd", "kernels", "hostnames", "clusters", "organ", "workspaces"]
)
def test_keys_that_only_begin_like_an_exact_reserved_one_are_welcome(key: str) -> None:
    assert labels.checked({key: "x"}) == {key: "x"}


@pytest.mark.parametrize("key", ["", "Pool", "a b", "a/b", "é", "a\n", "x" * 64, "a\x00", "\ud800", "١"])
def test_a_bad_key_is_refused(key: str) -> None:
    assert code({key: "x"}) == "INVALID_LABEL"


@pytest.mark.parametrize("value", ["a b", "x" * 64, "é", "a\n", "$(id)", "';", None, 1, True, ["x"], {}, "\ud800", "١"])
def test_a_bad_value_is_refused_for_any_key(value: object) -> None:
    assert code({"pool": value}) == "INVALID_LABEL"
    assert code({"team": value}) == "INVALID_LABEL"


def test_an_empty_value_leaves_the_label_out() -> None:
    assert labels.checked({"pool": "", "rack": "r1"}) == {"rack": "r1"}


def test_too_many_labels_are_refused() -> None:
    assert code({f"k{n}": "v" for n in range(labels.MAX_LABELS + 1)}) == "INVALID_LABEL"


def test_placements_four_are_kept_apart_from_the_rest() -> None:
    split = labels.split({"pool": "h100", "rack": "r1", "team": "red"})
    assert (split.pool, split.site, split.rack, split.fabric) == ("h100", "", "r1", "")
    assert split.own == {"team": "red"}
