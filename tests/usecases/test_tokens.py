"""API tokens: scoped, expiring, limited in number, revoked at once, last used (spec 50, "Tokens")."""

from __future__ import annotations

import pytest

from corral.domain.errors import Refusal
from corral.domain.permissions import Rule, Who
from corral.domain.users import LOGIN_TOKENS_MAX, TOKENS_MAX
from corral.store.transaction import Signal, Wake
from corral.usecases import tokens
from corral.usecases.identity import Caller, Place, enter
from tests.conftest import Clock
from tests.world import World


def enters(world: World, text: str, scope: str = "me") -> str:
    try:
        with world.db.read() as tx:
            enter(tx, Caller(text), Rule(Who.SELF, scope), Place())
    except Refusal as refusal:
        return refusal.code
    return "in"


def test_a_token_does_what_its_scopes_say_until_it_expires(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    with world.act("member") as ctx:
        made = tokens.create(ctx, "ci", ["org:read"], 3600)
    assert enters(world, made.text, "org:read") == "in"
    assert enters(world, made.text, "me") == "FORBIDDEN"
    clock.forward(3600)
    assert enters(world, made.text, "org:read") == "UNAUTHENTICATED"


def test_a_revoked_token_is_out_at_once_and_its_streams_are_told(world: World) -> None:
    heard: list[Signal] = []
    with world.act("member") as ctx:
        made = tokens.create(ctx, "ci", ["all"], None)
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    with world.act("member") as ctx:
        tokens.revoke(ctx, made.token.public_id)
    assert enters(world, made.text) == "UNAUTHENTICATED"
    assert heard == [Signal(Wake.STREAMS, world.ids.users["member"])]
    with pytest.raises(Refusal), world.act("member") as ctx:
        tokens.revoke(ctx, made.token.id)


def test_logins_that_give_way_to_a_new_one_are_told_to_their_streams(world: World, clock: Clock) -> None:
    heard: list[Signal] = []
    member = world.ids.users["member"]
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    for _ in range(LOGIN_TOKENS_MAX + 1):
        clock.forward(1)
        with world.act("member") as ctx:
            tokens.log_in(ctx, member)
    assert heard == [Signal(Wake.STREAMS, member)]


def test_nobody_revokes_anybody_elses(world: World) -> None:
    with world.act("member") as ctx:
        made = tokens.create(ctx, "ci", ["all"], None)
    with pytest.raises(Refusal) as refused, world.act("owner") as ctx:
        tokens.revoke(ctx, made.token.id)
    assert refused.value.code == "NOT_FOUND"
    assert enters(world, made.text) == "in"


def test_a_person_has_at_most_100_live_tokens(world: World) -> None:
    with world.act("member") as ctx:
        have = sum(not token.from_login for token in tokens.listed(ctx, None, 1000))
        made = [tokens.create(ctx, f"ci {number}", ["me"], None) for number in range(TOKENS_MAX - have)]
        with pytest.raises(Refusal) as refused:
            tokens.create(ctx, "one more", ["me"], None)
        assert refused.value.code == "CONFLICT"
        tokens.revoke(ctx, made[0].token.id)
        tokens.create(ctx, "one more", ["me"], None)


def test_lists_have_no_secret(world: World) -> None:
    with world.act("member") as ctx:
        made = tokens.create(ctx, "ci", ["me"], None)
        listed = tokens.listed(ctx, None, 10)
    assert made.text not in repr(listed)
    assert made.token in listed


def test_last_used_is_written_in_batches_and_never_goes_back(world_on_both: World, clock: Clock) -> None:
    world = world_on_both
    with world.act("member") as ctx:
        id = tokens.listed(ctx, None, 10)[0].id
    used, moment = tokens.LastUsed(world.db), clock.now
    wrote: list[object] = []
    used.note(id, moment)
    used.note("absent", moment)
    with world.act("member") as ctx:
        assert tokens.listed(ctx, None, 10)[0].last_used_at is None
    used.flush()
    clock.forward(-60)
    used.note(id, clock.now)
    used.flush()
    world.db.subscribe(lambda signals, seq: wrote.append(seq))
    used.flush()
    with world.act("member") as ctx:
        assert tokens.listed(ctx, None, 10)[0].last_used_at == moment
    assert wrote == []


def test_a_get_writes_nothing(world: World) -> None:
    client = world.client("member")
    with world.db.write() as _:  # a request that wrote would wait for this for ever
        assert client.get("/api/v1/me").status_code == 200
    world.app.state.last_used.flush()
    assert client.get("/api/v1/me/tokens").json()["items"][0]["last_used_at"] is not None
