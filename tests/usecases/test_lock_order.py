"""What numbers allocations anew waits for its tenancies (reports write the same rows in an order of their own); so does
what changes where work may land."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from corral.domain import join_tokens as join_token_rules
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.domain.faults import Acknowledged
from corral.domain.permissions import Role
from corral.domain.quotas import Quota
from corral.store import fleet
from corral.store.transaction import Scope
from corral.usecases import (
    access,
    clusters,
    data_location,
    faults,
    join_tokens,
    machine_labels,
    machines,
    members,
    orgs,
    queue,
    removal,
    reservations,
    ssh_keys,
    workspaces,
)
from corral.usecases.fleets import Fleets
from tests.placing import create
from tests.usecases.test_reservations import asked
from tests.world import World, public_key

WAITS = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM tenancies%'")


def remove_key(world: World) -> None:
    with world.act("member") as ctx:
        ssh_keys.remove(ctx, "laptop")


def remove_member(world: World) -> None:
    with world.act("admin", org="acme") as ctx:
        members.remove(ctx, "member")


def set_role(world: World) -> None:
    with world.act("owner", org="acme") as ctx:
        members.set_role(ctx, "member", Role.ADMIN)


def leave_workspace(world: World) -> None:
    with world.act("admin", "acme", "research") as ctx:
        workspaces.remove_member(ctx, "member")


def reserve(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        reservations.create(ctx, "default", asked(1, 2, ["gpu-1"]))


def place(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        machine_labels.place(ctx, "default", "gpu-1", {"pool": "x"})


def remove_machine(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        removal.remove(ctx, "default", "gpu-1", force=True)


def forget_data_location(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        data_location.forget(ctx, ("default", "gpu-1"))


def clear_fault(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        asked = faults.to_clear(ctx, "default", "gpu-1", "GPU-gpu-1-0")
        faults.clear(ctx, "default", "gpu-1", asked.gpu.uuid, faults.Answered(asked, Acknowledged("boot", 0, None), 0))


def grant(world: World) -> None:
    with world.act("admin", "acme", "private") as ctx:
        access.put(ctx, "default", ["*"], Quota())


def cordon(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        machines.cordon(ctx, "default", "gpu-1", "to see")


def release_quarantine(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        machines.release_quarantine(ctx, "default", "gpu-1")


def leave_cluster(world: World) -> None:
    """It is not left while a workspace has access: the lock comes before that is looked at."""
    with world.act("admin", "acme") as ctx, suppress(Refusal):
        clusters.leave(ctx, "default")


def come_back(world: World) -> None:
    with world.act("admin", "acme") as ctx:
        clusters.use_hosted(ctx)


def token_from_a_workspace(world: World) -> None:
    """The label's pool is granted to it."""
    with world.act("admin", "acme", "private") as ctx:
        join_tokens.create_for_workspace(ctx, None, join_token_rules.asked({"pool": "h100"}, 3600))


ACTS = [
    *(remove_key, remove_member, set_role, leave_workspace, grant, token_from_a_workspace),
    *(reserve, place, cordon, release_quarantine, remove_machine, forget_data_location, clear_fault),
    leave_cluster,
]


@pytest.mark.parametrize("act", ACTS)
def test_whoever_numbers_allocations_anew_or_changes_what_may_land_waits_for_the_tenancy(
    world_on_both: World, act: Callable[[World], None]
) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    with world.act("member") as ctx:
        ssh_keys.add(ctx, "laptop", public_key("laptop"))
    create(world, Creation("dev", ssh_keys=["laptop"]))
    waits_for_the_tenancy(world, act)


def test_coming_back_to_the_hosted_cluster_waits_for_the_tenancy(world_on_both: World) -> None:
    world = world_on_both
    with world.act("admin", "acme", "research") as ctx:
        access.remove(ctx, "default")
    with world.act("admin", "acme") as ctx:
        clusters.leave(ctx, "default")
    waits_for_the_tenancy(world, come_back)


def waits_for_the_tenancy(world: World, act: Callable[[World], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        if world.db.is_sqlite:
            pool.submit(act, world).result(20)  # SQLite has one writer
            return
        with world.db.write() as tx:
            fleet.lock(tx, Scope(world.ids.orgs["acme"]), world.ids.clusters["default"])
            done, deadline = pool.submit(act, world), time.monotonic() + 20
            while not done.done() and not _waits(world):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert not done.done()
        done.result(20)


def _waits(world: World) -> bool:
    with world.db.read() as tx:
        return bool(tx.scalar(WAITS))


def test_work_waits_and_is_placed_while_somebody_holds_the_organisation(world_on_both: World) -> None:
    """Placement locks tenancies and never waits for an organisation: whoever has that waits for tenancies."""
    world = world_on_both
    if world.db.is_sqlite:
        pytest.skip("SQLite has one writer: nobody else writes meanwhile")
    fleets, ids = Fleets(), world.ids

    def wait_and_place() -> None:
        create(world, Creation("first", gpus=1, wait=True), fleets=fleets)
        with world.db.write() as tx:
            queue.advance(tx, fleets, ids.orgs["acme"], ids.clusters["default"])

    world.add_machine("gpu-1")
    create(world, Creation("all", gpus=2), fleets=fleets)
    with ThreadPoolExecutor(1) as pool, world.act("admin", "acme") as ctx:
        orgs.locked(ctx)
        pool.submit(wait_and_place).result(20)
        join_tokens.create(ctx, "default", join_token_rules.asked({}, 3600))


def test_a_lock_never_holds_up_what_only_refers_to_the_row() -> None:
    """On PostgreSQL a foreign key's check waits for FOR UPDATE, in an order that nobody chose: deadlocks."""
    store = Path(fleet.__file__).parent
    # SSH keys are deleted for good: what attaches one holds it FOR SHARE, so what removes one has to wait for that.
    known = {"ssh_keys.py"}
    bare = re.compile(r"with_for_update\((?![^)]*(?:key_share|read)=True)")
    found = {path.name for path in store.glob("*.py") if bare.search(path.read_text("utf-8"))}
    assert found == known
