"""Logins, passwords and the scopes of API tokens (spec 05, spec 50)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import users
from corral.domain.errors import Refusal
from corral.domain.permissions import SCOPES


def test_a_login_is_kept_in_lower_case() -> None:
    assert users.login("Ada@Example.org") == "ada@example.org"


@pytest.mark.parametrize(
    "text",
    ["", " ada", "a b", "a/b", "..", "a\0b", "a\u202eb", "x" * 101, "\u0430da", "\u212a", "ada\n", "-ada"],
)
def test_what_is_no_login_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        users.login(text)
    assert refused.value.code == "INVALID_NAME"


def test_a_login_cannot_look_like_an_id() -> None:
    with pytest.raises(Refusal):
        users.login("0190f0a0-0000-7000-8000-000000000000")


@pytest.mark.parametrize("length, fits", [(9, False), (10, True), (1024, True), (1025, False)])
def test_a_password_has_10_to_1024_characters(length: int, fits: bool) -> None:
    if fits:
        assert users.new_password("x" * length)
        return
    with pytest.raises(Refusal):
        users.new_password("x" * length)


def test_an_accent_typed_in_two_ways_is_one_password() -> None:
    assert users.new_password("caf\u00e9-au-lait") == users.typed_password("cafe\u0301-au-lait")


@given(st.sets(st.sampled_from(sorted(SCOPES)), min_size=1), st.sets(st.sampled_from(sorted(SCOPES)), min_size=1))
def test_a_token_never_makes_one_that_may_do_more(asked: set[str], held: set[str]) -> None:
    try:
        given_scopes = set(users.token_scopes(sorted(asked), held))
    except Refusal as refusal:
        assert refusal.code == "FORBIDDEN"
        assert not asked <= held
        return
    assert given_scopes == asked
    assert "all" in held or asked <= held


@pytest.mark.parametrize("asked", [[], ["everything"], ["org:read", "ORG:WRITE"]])
def test_scopes_are_known_ones(asked: list[str]) -> None:
    with pytest.raises(Refusal) as refused:
        users.token_scopes(asked, {"all"})
    assert refused.value.code == "INVALID_REQUEST"
