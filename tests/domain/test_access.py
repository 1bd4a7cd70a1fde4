"""Access: pools and quotas (spec 00, "access (terms)", "pool")."""

from __future__ import annotations

import pytest

from corral.domain import access
from corral.domain.errors import Refusal


def test_pools_are_kept_once_and_sorted() -> None:
    assert access.pools(["h100", "a100", "h100"]) == ("a100", "h100")


@pytest.mark.parametrize("pool", ["", "a b", "x" * 64, "a\0", "\u202eh100", "**", "h100*", "a,b"])
def test_what_no_label_can_be_is_no_pool(pool: str) -> None:
    with pytest.raises(Refusal) as refused:
        access.pools([pool])
    assert refused.value.code == "INVALID_LABEL"


@pytest.mark.parametrize("pools", [[], ["x"] * 101])
def test_access_names_1_to_100_pools(pools: list[str]) -> None:
    with pytest.raises(Refusal):
        access.pools(pools)


def test_the_star_means_every_machine_also_one_without_a_pool() -> None:
    assert access.may_use(("*",), "")
    assert access.may_use(("*",), "h100")


def test_a_pool_means_its_own_machines_only() -> None:
    assert access.may_use(("h100",), "h100")
    assert not access.may_use(("h100",), "a100")
    assert not access.may_use(("h100",), "")
    assert not access.may_use((), "")
