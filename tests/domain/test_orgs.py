"""Organisations: roles, the last owner, invitations (spec 05)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import orgs
from corral.domain.errors import Refusal
from corral.domain.permissions import Role

ROLES = st.sampled_from(list(Role))


@given(ROLES, st.none() | ROLES, st.integers(1, 3))
def test_at_least_one_owner_is_left(present: Role, wanted: Role | None, owners: int) -> None:
    left = owners - (present is Role.OWNER) + (wanted is Role.OWNER)
    try:
        orgs.check_owner_stays(present, wanted, owners)
    except Refusal as refusal:
        assert refusal.code == "LAST_OWNER"
        assert left == 0
        return
    assert left >= 1


@pytest.mark.parametrize(
    "actor, present, wanted, allowed",
    [
        (Role.OWNER, Role.OWNER, Role.MEMBER, True),
        (Role.OWNER, Role.MEMBER, Role.OWNER, True),
        (Role.ADMIN, Role.MEMBER, Role.ADMIN, True),
        (Role.ADMIN, Role.ADMIN, Role.MEMBER, True),
        (Role.ADMIN, Role.OWNER, Role.MEMBER, False),
        (Role.ADMIN, Role.MEMBER, Role.OWNER, False),
        (Role.MEMBER, Role.MEMBER, Role.MEMBER, False),
    ],
)
def test_admins_set_roles_below_owner_only(actor: Role, present: Role, wanted: Role, allowed: bool) -> None:
    if allowed:
        orgs.check_role_change(actor, present, wanted)
        return
    with pytest.raises(Refusal) as refused:
        orgs.check_role_change(actor, present, wanted)
    assert refused.value.code == "FORBIDDEN"


@pytest.mark.parametrize("slug", ["", "A", "a_b", "-a", "a-", "a/b", "..", "a\0", "\u202ea", "x" * 64, "a b", "ä"])
def test_what_is_no_short_name_is_refused(slug: str) -> None:
    with pytest.raises(Refusal) as refused:
        orgs.org_slug(slug)
    assert refused.value.code == "INVALID_NAME"


def test_an_invitation_lives_a_minute_to_thirty_days() -> None:
    assert orgs.invitation_ttl(None) == timedelta(days=7)
    assert orgs.invitation_ttl(60) == timedelta(minutes=1)
    for seconds in (59, 30 * 86400 + 1, -1):
        with pytest.raises(Refusal):
            orgs.invitation_ttl(seconds)


@pytest.mark.parametrize("line", ["x" * 201, "two\nlines", "turned\u202eround", "nul\0"])
def test_a_contact_is_one_line_that_shows(line: str) -> None:
    with pytest.raises(Refusal):
        orgs.contact(line)
