"""Taking a cluster out of the organisation, and what comes back (spec 10, "Kinds of cluster")."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update

from corral.domain import join_tokens as rules
from corral.domain.allocations import Seen
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.machines import MachineState
from corral.domain.sessions import Hello
from corral.store import journal
from corral.store import updates as update_rows
from corral.store.machines import Wanted
from corral.store.tables.clusters import tenancies
from corral.store.tables.machines import machines
from corral.store.transaction import Scope, Tx
from corral.usecases import access, clusters, dedicated_clusters, join_tokens, joining, sessions, staged_updates
from corral.usecases import machines as machine_use
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets
from corral.usecases.join_tokens import NewJoinToken
from tests.live_server import agent_key
from tests.placing import code_of, report, saying, terminate
from tests.racing import outcome, while_locked
from tests.world import World


def take_access(world: World, org: str = "acme") -> None:
    """Take away what the world's workspace has of the hosted cluster."""
    who = "admin" if org == "acme" else "rival"
    answer = world.client(who).delete(f"/api/v1/orgs/{org}/workspaces/research/access/default")
    assert answer.status_code in (200, 204), answer.text


def leave(world: World, slug: str = "default") -> clusters.Leaving:
    with world.act("admin", org="acme") as ctx:
        return clusters.leave(ctx, slug)


def use_hosted(world: World) -> clusters.Cluster:
    with world.act("admin", org="acme") as ctx:
        return clusters.use_hosted(ctx)


def dedicated(world: World, slug: str = "big") -> str:
    with world.act("operator", org="acme") as ctx:
        return clusters.create_dedicated(ctx, slug, slug.title()).id


def token(world: World, cluster: str = "default") -> NewJoinToken:
    with world.act("admin", org="acme") as ctx:
        return join_tokens.create(ctx, cluster, rules.asked({}, 3600))


def join(world: World, secret: str) -> str:
    with world.db.write() as tx:
        answer = joining.join(tx, joining.asked(secret, agent_key(), "gpu", "0.1.0"))
    return answer.code if isinstance(answer, Refusal) else "done"


def listed(world: World) -> list[str]:
    with world.act("admin", org="acme") as ctx:
        return [cluster.slug for cluster in clusters.listed(ctx, None, 9)]


def left_at(tx: Tx, world: World, cluster_id: str) -> Any:
    mine = (tenancies.c.org_id == world.ids.orgs["acme"], tenancies.c.cluster_id == cluster_id)
    return tx.scalar(select(tenancies.c.left_at).where(*mine))


def audit(world: World, type: str) -> list[dict[str, Any]]:
    with world.db.read() as tx:
        want = journal.Filter(view="audit", types=[type])
        found = journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=99)
        return [dict(row["data"]) for row in found]


def test_a_cluster_is_not_left_while_a_workspace_has_access(world_on_both: World) -> None:
    with pytest.raises(Refusal) as refused:
        leave(world_on_both)
    assert refused.value.code == "CLUSTER_IN_USE"
    assert refused.value.details == {"workspaces": ["research"], "count": 1}
    assert "research" in refused.value.message
    assert listed(world_on_both) == ["default"]
    assert audit(world_on_both, "cluster.removed") == []


def test_the_access_of_another_organisation_keeps_nobody_in(world_on_both: World) -> None:
    take_access(world_on_both)
    leave(world_on_both)
    with world_on_both.act("rival", org="rival") as ctx:
        assert [one.slug for one in clusters.listed(ctx, None, 9)] == ["default"]


def test_what_leaving_comes_to_is_said_before_and_changes_nothing(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    world.add_machine("theirs", org="rival")
    world.add_workload("dev", "gpu-1", gpu_count=1)
    token(world)
    with world.act("admin", org="acme") as ctx:
        told = clusters.would_leave(ctx, "default")
    assert (told.machines, list(told.machine_names), told.tokens) == (1, ["gpu-1"], 1)
    assert list(told.workspaces) == ["research"]
    assert [(work["workspace"], work["name"], work["state"]) for work in told.running] == [
        ("research", "dev", "active")
    ]
    assert listed(world) == ["default"]
    assert audit(world, "cluster.removed") == []


def test_machines_of_a_cluster_that_was_left_stay_enrolled_and_are_in_no_list(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    take_access(world)
    assert leave(world).machines == 1
    assert listed(world) == []
    with world.act("admin", org="acme") as ctx:
        assert clusters.hosted_offered(ctx)
        assert outcome(lambda: machine_use.listed(ctx, "default", Wanted(), None, 9)) == "NOT_FOUND"
        assert outcome(lambda: machine_use.one(ctx, "default", "gpu-1")) == "NOT_FOUND"
        assert outcome(lambda: clusters.rename(ctx, "default", "x")) == "NOT_FOUND"
        assert outcome(lambda: clusters.leave(ctx, "default")) == "NOT_FOUND"
    with world.db.read() as tx:
        row = tx.one(select(machines).where(machines.c.name == "gpu-1"))
    assert row is not None and row["removed_at"] is None
    (entry,) = audit(world, "cluster.removed")
    assert entry == {"slug": "default", "name": "Hosted", "machines": 1, "tokens": 0, "revoked": []}


def test_no_access_is_granted_to_a_cluster_that_was_left(world_on_both: World) -> None:
    take_access(world_on_both)
    leave(world_on_both)
    path = "/api/v1/orgs/acme/workspaces/research"
    admin = world_on_both.client("admin")
    assert admin.put(f"{path}/access/default", json={"pools": ["*"]}).status_code == 404
    assert admin.get(f"{path}/access").json()["items"] == []
    assert admin.get(f"{path}/machines").json()["items"] == []


def test_the_hosted_cluster_comes_back_with_its_machines(world_on_both: World) -> None:
    world = world_on_both
    world.add_machine("gpu-1", gpu_count=3)
    with world.act("admin", org="acme") as ctx:
        clusters.rename(ctx, "default", "Lab")
    take_access(world)
    leave(world)
    back = use_hosted(world)
    assert (back.id, back.slug, back.name) == (world.ids.clusters["default"], "default", "Lab")
    assert (back.machines, back.up, back.gpus) == (1, 1, 3)
    assert use_hosted(world) == back
    assert [entry["machines"] for entry in audit(world, "cluster.hosted.joined")] == [1]


def test_a_cluster_that_comes_back_gets_a_short_name_that_is_free(world_on_both: World) -> None:
    world = world_on_both
    take_access(world)
    leave(world)
    dedicated(world, "default")
    assert use_hosted(world).slug == "cloud"
    assert listed(world) == ["cloud", "default"]


def test_of_eight_who_come_back_at_once_all_get_the_same_answer(world_on_both: World) -> None:
    world, start = world_on_both, threading.Barrier(8)
    take_access(world)
    leave(world)

    def back(_: int) -> clusters.Cluster:
        start.wait()
        return use_hosted(world)

    with ThreadPoolExecutor(8) as pool:
        assert len({(one.id, one.slug) for one in pool.map(back, range(8))}) == 1
    assert len(audit(world, "cluster.hosted.joined")) == 1


def test_machines_that_stayed_count_toward_the_limit_again(world_on_both: World) -> None:
    for number in range(10):
        world_on_both.add_machine(f"gpu-{number}")
    take_access(world_on_both)
    leave(world_on_both)
    use_hosted(world_on_both)
    assert outcome(lambda: token(world_on_both)) == "LIMIT_REACHED"


def test_unused_tokens_are_revoked_when_the_cluster_is_left(world_on_both: World) -> None:
    world = world_on_both
    take_access(world)
    made = [token(world) for _ in range(2)]
    with world.act("admin", org="acme") as ctx:
        waiting = sorted(one.public_id for one in join_tokens.listed(ctx, "default", None, 9))
    assert leave(world).tokens == 2
    (entry,) = audit(world, "cluster.removed")
    assert (entry["tokens"], entry["revoked"]) == (2, waiting)
    assert join(world, made[0].token) == "TOKEN_UNKNOWN"
    use_hosted(world)
    assert join(world, made[1].token) == "TOKEN_UNKNOWN"
    with world.act("admin", org="acme") as ctx:
        assert join_tokens.listed(ctx, "default", None, 9) == []


def test_a_used_token_says_so_also_after_the_cluster_was_left(world_on_both: World) -> None:
    take_access(world_on_both)
    made = token(world_on_both)
    assert join(world_on_both, made.token) == "done"
    leave(world_on_both)
    assert join(world_on_both, made.token) == "TOKEN_USED"


def test_a_machine_of_a_cluster_that_was_left_asks_again_and_is_the_same(world_on_both: World) -> None:
    take_access(world_on_both)
    made, key = token(world_on_both), agent_key()
    with world_on_both.db.write() as tx:
        first = joining.join(tx, joining.asked(made.token, key, "gpu", "0.1.0"))
    leave(world_on_both)
    with world_on_both.db.write() as tx:
        assert joining.join(tx, joining.asked(made.token, key, "gpu", "0.1.0")) == first


def test_a_machine_keeps_its_session_when_its_cluster_is_left(world_on_both: World) -> None:
    take_access(world_on_both)
    made, key = token(world_on_both), agent_key()
    with world_on_both.db.write() as tx:
        joining.join(tx, joining.asked(made.token, key, "gpu", "0.1.0"))
        session = sessions.open(tx, key, Hello(1, "0.1.0", "one", "boot", 1), "192.0.2.7")
    leave(world_on_both)
    with world_on_both.db.write() as tx:
        assert machine_use.set_state(tx, session.machine, MachineState.UP)
        assert sessions.current(tx, session)["state"] == "up"


def test_nothing_is_placed_on_machines_of_a_cluster_that_was_left(world_on_both: World) -> None:
    world, fleets = world_on_both, Fleets()
    world.add_machine("gpu-1")
    assert code_of(world, Creation("dev", gpus=1), fleets=fleets) == ""
    terminate(world, "dev")
    report(world, "gpu-1", [saying(world, "dev", Seen.GONE)])
    take_access(world)
    leave(world)
    assert code_of(world, Creation("dev", gpus=1), fleets=fleets) == "NO_ACCESS"
    assert code_of(world, Creation("dev", gpus=1, cluster="default"), fleets=fleets) == "NOT_FOUND"


def test_an_update_of_agents_asks_no_more_machines_of_a_cluster_that_was_left(world_on_both: World) -> None:
    world = world_on_both
    machine = world.add_machine("gpu-1")
    with world.act("admin", org="acme") as ctx:
        ctx.tx.run(update(machines).where(machines.c.id == machine).values(release="0.1.0"))
        started = staged_updates.start(ctx, "default", "9.9.9")
    assert started.id is not None
    take_access(world)
    leave(world)
    with world.db.write() as tx:
        (row,) = update_rows.unsettled(tx)
        staged_updates.advance(tx, row, "9.9.9", tx.now)
        ended = update_rows.get(tx, Scope(world.ids.orgs["acme"]), started.id)
    assert ended is not None
    assert (ended["outcome"], ended["message"]) == ("stopped", "the cluster was taken out of the organisation")


def test_no_token_is_made_for_a_cluster_that_is_left_meanwhile(world_on_both: World) -> None:
    world = world_on_both
    big = dedicated(world)
    then = while_locked(
        world, "admin", lambda ctx: clusters.leave(ctx, "big"), lambda: outcome(lambda: token(world, "big"))
    )
    assert then == "NOT_FOUND"
    with world.db.read() as tx:
        assert left_at(tx, world, big) is not None


def test_a_machine_that_joins_while_its_cluster_is_left_is_refused(world_on_both: World) -> None:
    world = world_on_both
    dedicated(world)
    made = token(world, "big")
    then = while_locked(world, "admin", lambda ctx: clusters.leave(ctx, "big"), lambda: join(world, made.token))
    assert then == "TOKEN_UNKNOWN"
    with world.db.read() as tx:
        assert tx.scalar(select(func.count()).select_from(machines)) == 0


def test_no_access_is_granted_to_a_cluster_that_is_left_meanwhile(world_on_both: World) -> None:
    world = world_on_both
    dedicated(world)

    def grant() -> int:
        path = "/api/v1/orgs/acme/workspaces/research/access/big"
        return world.client("admin").put(path, json={"pools": ["*"]}).status_code

    assert while_locked(world, "admin", lambda ctx: clusters.leave(ctx, "big"), grant) == 404


def test_a_cluster_is_not_left_when_access_is_granted_meanwhile(world_on_both: World) -> None:
    world = world_on_both
    big = dedicated(world)

    def grant(ctx: Context) -> None:
        access.grant_pool(ctx, world.ids.workspaces["acme/private"], big, "h100")

    assert while_locked(world, "admin", grant, lambda: outcome(lambda: leave(world, "big"))) == "CLUSTER_IN_USE"


# --- dedicated ones


def remove(world: World, id: str) -> None:
    with world.act("operator") as ctx:
        dedicated_clusters.remove(ctx, id)


def enrolled_in(world: World, cluster: str) -> None:
    assert join(world, token(world, cluster).token) == "done"


def seen(world: World) -> list[tuple[str, str, int, bool]]:
    with world.act("operator") as ctx:
        return [
            (one.org, one.slug, one.counts.machines, one.left_at is not None)
            for one in dedicated_clusters.listed(ctx, None, 9)
        ]


def test_a_dedicated_cluster_that_was_left_waits_with_its_machines_for_the_operator(world_on_both: World) -> None:
    world = world_on_both
    id = dedicated(world)
    enrolled_in(world, "big")
    assert seen(world) == [("acme", "big", 1, False)]
    assert outcome(lambda: remove(world, id)) == "CLUSTER_IN_USE"
    leave(world, "big")
    assert seen(world) == [("acme", "big", 1, True)]
    with pytest.raises(Refusal) as refused:
        remove(world, id)
    assert (refused.value.code, refused.value.details) == ("CLUSTER_IN_USE", {"org": "acme", "machines": 1})


def test_only_the_operator_gives_a_dedicated_cluster_back(world_on_both: World) -> None:
    world = world_on_both
    id = dedicated(world)
    enrolled_in(world, "big")
    leave(world, "big")
    use_hosted(world)
    assert listed(world) == ["default"]
    with world.act("operator", org="acme") as ctx:
        back = clusters.give_back(ctx, id, "again", "Again")
    assert (back.id, back.slug, back.machines) == (id, "again", 1)
    with world.act("admin", org="acme") as ctx:
        assert machine_use.one(ctx, "again", "gpu").machine.row["name"] == "gpu"
    assert [entry.get("given_back") for entry in audit(world, "cluster.created")] == [1, None]


def test_nothing_is_given_back_but_what_this_organisation_left(world_on_both: World) -> None:
    world = world_on_both
    used, left = dedicated(world), dedicated(world, "left")
    leave(world, "left")

    def back(org: str, id: str, slug: str = "back") -> str:
        def act() -> None:
            with world.act("operator", org=org) as ctx:
                clusters.give_back(ctx, id, slug, "Back")

        return outcome(act)

    assert back("rival", left) == "NOT_FOUND"
    assert back("acme", used) == "NOT_FOUND"
    assert back("acme", world.ids.clusters["default"]) == "NOT_FOUND"
    assert back("acme", "absent") == "NOT_FOUND"
    assert back("acme", left, "default") == "NAME_TAKEN"
    remove(world, left)
    assert back("acme", left) == "NOT_FOUND"


def test_a_deleted_cluster_is_gone_and_both_audits_say_so(world_on_both: World) -> None:
    world = world_on_both
    id = dedicated(world)
    leave(world, "big")
    remove(world, id)
    assert seen(world) == []
    assert outcome(lambda: remove(world, id)) == "NOT_FOUND"
    assert outcome(lambda: remove(world, world.ids.clusters["default"])) == "NOT_FOUND"
    told = {"slug": "big", "name": "Big", "deleted": True}
    assert audit(world, "cluster.removed")[0] == told
    with world.db.read() as tx:
        own = journal.newest_first(tx, None, journal.Filter("audit", ["cluster.removed"]), before=None, limit=9)
    assert [dict(row["data"]) for row in own] == [{"org": "acme", **told}]
    assert dedicated(world) != id


def test_a_cluster_that_is_given_back_meanwhile_is_not_deleted(world_on_both: World) -> None:
    world = world_on_both
    id = dedicated(world)
    leave(world, "big")

    def back(ctx: Context) -> None:
        clusters.give_back(ctx, id, "big", "Big")

    assert while_locked(world, "operator", back, lambda: outcome(lambda: remove(world, id))) == "CLUSTER_IN_USE"
    assert listed(world) == ["big", "default"]


def test_the_operators_list_has_each_clusters_own_numbers_in_pages(world_on_both: World) -> None:
    world = world_on_both
    ids = [dedicated(world, slug) for slug in ("one", "two", "three")]
    with world.act("operator", org="rival") as ctx:
        ids.append(clusters.create_dedicated(ctx, "one", "Theirs").id)
    enrolled_in(world, "two")
    with world.act("operator") as ctx:
        first = dedicated_clusters.listed(ctx, None, 3)
        rest = dedicated_clusters.listed(ctx, first[-1].id, 3)
    assert [one.id for one in [*first, *rest]] == sorted(ids)
    assert {(one.org, one.slug): one.counts.machines for one in [*first, *rest]} == {
        ("acme", "one"): 0,
        ("acme", "two"): 1,
        ("acme", "three"): 0,
        ("rival", "one"): 0,
    }
