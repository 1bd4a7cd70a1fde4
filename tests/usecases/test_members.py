"""Members: the last owner stays, also under races; who goes sees nothing any more (spec 05)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.domain.errors import Refusal
from corral.domain.permissions import Part, Role
from corral.store import orgs as org_rows
from corral.store.engine import Database
from corral.store.transaction import Scope, Signal, Wake
from corral.usecases import members, orgs, workspaces
from tests.world import World


def roles(world: World, org: str = "acme") -> dict[str, str]:
    with world.db.read() as tx:
        return {row["login"]: row["role"] for row in org_rows.members_listed(tx, Scope(world.ids.orgs[org]), None, 100)}


def refusal_of(world: World, who: str, user: str, wanted: Role | None) -> str:
    try:
        with world.act(who, "acme") as ctx:
            if wanted is None:
                members.remove(ctx, user)
            else:
                members.set_role(ctx, user, wanted)
    except Refusal as refusal:
        return refusal.code
    return "done"


def test_the_last_owner_stays(world_on_both: World) -> None:
    world = world_on_both
    assert refusal_of(world, "owner", "owner", Role.ADMIN) == "LAST_OWNER"
    assert refusal_of(world, "owner", "owner", None) == "LAST_OWNER"
    world.add_member("boss", role=Role.OWNER)
    assert refusal_of(world, "owner", "owner", None) == "done"
    assert refusal_of(world, "boss", "boss", Role.MEMBER) == "LAST_OWNER"


@pytest.mark.parametrize("wanted", [Role.MEMBER, None], ids=["demote", "remove"])
def test_two_owners_who_put_each_other_out_at_once_leave_one(world_on_both: World, wanted: Role | None) -> None:
    world = world_on_both
    world.add_member("boss", role=Role.OWNER)
    both_in = threading.Barrier(1 if world.db.is_sqlite else 2)  # SQLite lets one writer in at a time

    def act(who: str, user: str) -> str:
        try:
            with world.act(who, "acme") as ctx:
                both_in.wait(30)
                if wanted is None:
                    members.remove(ctx, user)
                else:
                    members.set_role(ctx, user, wanted)
        except Refusal as refusal:
            return refusal.code
        return "done"

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(act, ["owner", "boss"], ["boss", "owner"]))
    assert codes.count("done") == 1
    assert list(roles(world).values()).count("owner") == 1


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["owner", "admin", "lead"]),
        st.sampled_from(["owner", "admin", "lead", "member"]),
        st.none() | st.sampled_from(list(Role)),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTS)
def test_whatever_members_do_an_owner_is_left(
    sqlite_db: Database, tmp_path: Path, acts: Sequence[tuple[str, str, Role | None]]
) -> None:
    world = _fresh(sqlite_db, tmp_path)
    for who, user, wanted in acts:
        before = roles(world)
        code = refusal_of(world, who, user, wanted)
        after = roles(world)
        assert "owner" in after.values()
        changed = {name for name in before if before[name] != after.get(name)}
        assert changed <= {user}
        if changed and before[who] != "owner":
            assert before[who] == "admin" and "owner" not in (before[user], after.get(user))
        if code != "done":
            assert not changed


_worlds: dict[str, World] = {}


def _fresh(db: Database, state_dir: Path) -> World:
    """Return the test's one world, its roles as at first: making one for each example would take seconds."""
    key = str(db.url)
    if key not in _worlds:
        _worlds.clear()
        _worlds[key] = World(db, state_dir)
    world = _worlds[key]
    wanted = {"owner": "owner", "admin": "admin", "lead": "member", "member": "member"}
    scope = Scope(world.ids.orgs["acme"])
    with db.write() as tx:
        for login, role in wanted.items():
            org_rows.remove_member(tx, scope, world.ids.users[login])
            org_rows.add_member(tx, scope, world.ids.users[login], role)
    return world


def test_a_role_lost_a_moment_before_counts(world_on_both: World) -> None:
    """On PostgreSQL the role is read before the lock; what an act may do is judged under it again."""
    world = world_on_both
    if world.db.is_sqlite:
        assert refusal_of(world, "owner", "admin", Role.MEMBER) == "done"
        assert refusal_of(world, "admin", "lead", Role.ADMIN) == "FORBIDDEN"
        return
    with pytest.raises(Refusal) as refused, world.act("admin", "acme") as late:
        assert refusal_of(world, "owner", "admin", Role.MEMBER) == "done"
        members.set_role(late, "lead", Role.ADMIN)
    assert refused.value.code == "FORBIDDEN"


def test_a_removed_member_is_out_of_workspaces_and_their_streams_are_told(world: World) -> None:
    heard: list[Signal] = []
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    with world.act("owner", "acme") as ctx:
        members.remove(ctx, "member")
    assert Signal(Wake.STREAMS, world.ids.users["member"]) in heard
    with world.act("owner", "acme", "research") as ctx:
        assert [one.login for one in workspaces.members(ctx, None, 10)] == ["lead"]
    with pytest.raises(Refusal) as refused, world.act("member", "acme"):
        pass
    assert refused.value.code == "NOT_FOUND"
    with world.act("member") as ctx:
        assert list(orgs.listed(ctx, None, 10)) == []


def test_a_member_is_named_by_login_or_id(world: World) -> None:
    with world.act("owner", "acme") as ctx:
        assert members.set_role(ctx, world.ids.users["lead"], Role.ADMIN).login == "lead"
        assert members.set_role(ctx, "LEAD", Role.MEMBER).role == "member"


def test_somebody_of_another_organisation_is_not_found(world: World) -> None:
    for user in ("rival", world.ids.users["rival"], "nobody"):
        assert refusal_of(world, "owner", user, Role.ADMIN) == "NOT_FOUND"


def test_what_changes_nothing_is_not_recorded(world: World) -> None:
    heard: list[int | None] = []
    world.db.subscribe(lambda signals, seq: heard.append(seq))
    assert refusal_of(world, "owner", "admin", Role.ADMIN) == "done"
    with world.act("owner", "acme", "research") as ctx:
        workspaces.set_member(ctx, "lead", Part.LEAD)
    assert heard == []
