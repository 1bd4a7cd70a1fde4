"""Organisations: made and removed by the operator; owners invited (spec 05)."""

from __future__ import annotations

import pytest

from corral.domain import join_tokens as join_token_rules
from corral.domain.errors import Refusal
from corral.domain.permissions import Role
from corral.store import journal
from corral.store.transaction import Scope, Signal, Wake
from corral.usecases import access, cluster_requests, clusters, dedicated_clusters, join_tokens, orgs
from tests.world import World


def code_of_removal(world: World, org: str) -> str:
    try:
        with world.act("operator", org) as ctx:
            orgs.remove(ctx)
    except Refusal as refusal:
        return f"{refusal.code}: {refusal.message}"
    return "done"


def test_a_short_name_belongs_to_one_organisation(world_on_both: World) -> None:
    with pytest.raises(Refusal) as refused, world_on_both.act("operator") as ctx:
        orgs.create(ctx, "acme", "Another", "")
    assert refused.value.code == "NAME_TAKEN"


def test_an_organisation_with_machines_or_work_stays_and_says_what_it_has(world: World) -> None:
    world.add_machine("gpu-1")
    world.add_workload("dev", "gpu-1")
    answer = code_of_removal(world, "acme")
    assert answer.startswith("CONFLICT")
    assert "1 machine " in answer and "dev" in answer


def test_a_removed_organisation_is_gone_for_everybody_and_its_name_is_free(world_on_both: World) -> None:
    world = world_on_both
    heard: list[Signal] = []
    world.db.subscribe(lambda signals, seq: heard.extend(signals))
    assert code_of_removal(world, "acme") == "done"
    assert Signal(Wake.STREAMS, world.ids.users["member"]) in heard
    for who in ("owner", "member", "operator"):
        with pytest.raises(Refusal) as refused, world.act(who, "acme"):
            pass
        assert refused.value.code == "NOT_FOUND"
    with world.act("owner") as ctx:
        assert list(orgs.listed(ctx, None, 10)) == []
    with world.act("operator") as ctx:
        assert orgs.create(ctx, "acme", "Acme again", "").id != world.ids.orgs["acme"]
    with pytest.raises(Refusal), world.act("owner", "acme"):
        pass


def test_what_waits_for_the_operator_goes_with_the_organisation(world_on_both: World) -> None:
    world = world_on_both
    with world.act("operator", "acme") as ctx:
        clusters.create_dedicated(ctx, "used", "Used")
        clusters.create_dedicated(ctx, "left", "Left")
    with world.act("admin", "acme") as ctx:
        clusters.leave(ctx, "left")
        cluster_requests.ask(ctx, "More", "")
    assert code_of_removal(world, "acme") == "done"
    with world.act("operator") as ctx:
        assert dedicated_clusters.listed(ctx, None, 9) == []
        assert [one.state for one in cluster_requests.of_site(ctx, None, 9)] == ["withdrawn"]


def test_its_join_tokens_are_revoked_and_named_in_both_audits(world_on_both: World) -> None:
    world = world_on_both
    with world.act("owner", "acme") as ctx:
        for _ in range(2):
            join_tokens.create(ctx, "default", join_token_rules.asked({}, 3600))
        waiting = sorted(one.public_id for one in join_tokens.listed(ctx, "default", None, 9))
    assert code_of_removal(world, "acme") == "done"
    for scope in (Scope(world.ids.orgs["acme"]), None):
        with world.db.read() as tx:
            (entry,) = journal.newest_first(tx, scope, journal.Filter("audit", ["org.removed"]), before=None, limit=9)
        assert (entry["data"]["tokens"], entry["data"]["revoked"]) == (2, waiting)


def test_machines_of_a_cluster_that_was_left_keep_the_organisation(world: World) -> None:
    with world.act("rival", "rival", "research") as ctx:
        access.remove(ctx, "default")
    world.add_machine("gpu-1", org="rival")
    with world.act("rival", "rival") as ctx:
        clusters.leave(ctx, "default")
    answer = code_of_removal(world, "rival")
    assert answer.startswith("CONFLICT") and "cluster that was left" in answer


def test_the_operator_sees_all_organisations_and_others_their_own(world: World) -> None:
    for who, seen in (("operator", [("acme", None), ("rival", None)]), ("admin", [("acme", "admin")])):
        with world.act(who) as ctx:
            assert [(org.slug, org.role) for org in orgs.listed(ctx, None, 10)] == seen


def test_invitations_are_listed_without_their_secret_and_revoked_once(world: World) -> None:
    with world.act("owner", "acme") as ctx:
        made = orgs.invite(ctx, Role.ADMIN, "ada", 3600)
        listed = orgs.invitations(ctx, None, 10)
        assert [(one.id, one.role, one.login, one.by) for one in listed] == [(made.id, "admin", "ada", "owner")]
        assert made.text not in repr(listed)
        orgs.revoke_invitation(ctx, made.id)
        assert list(orgs.invitations(ctx, None, 10)) == []
        with pytest.raises(Refusal) as refused:
            orgs.revoke_invitation(ctx, made.id)
        assert refused.value.code == "NOT_FOUND"


def test_another_organisations_invitation_is_not_found(world: World) -> None:
    with world.act("owner", "acme") as ctx:
        made = orgs.invite(ctx, Role.ADMIN, None, None)
    with pytest.raises(Refusal) as refused, world.act("rival", "rival") as ctx:
        orgs.revoke_invitation(ctx, made.id)
    assert refused.value.code == "NOT_FOUND"


def test_a_member_is_not_invited_again(world: World) -> None:
    with pytest.raises(Refusal) as refused, world.act("owner", "acme") as ctx:
        orgs.invite(ctx, Role.ADMIN, "member", None)
    assert refused.value.code == "CONFLICT"
