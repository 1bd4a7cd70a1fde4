"""The site: its first start and its settings (spec 05)."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from corral.domain import secrets
from corral.domain.errors import Refusal
from corral.store import journal
from corral.store import site as rows
from corral.store.engine import Database
from corral.store.journal import Filter
from corral.store.tables.clusters import join_tokens
from corral.store.tables.machines import machines
from corral.store.tables.users import api_tokens, links
from corral.usecases import site
from tests.world import World


def test_the_first_start_makes_the_site_and_a_link_and_each_start_a_new_one(db: Database) -> None:
    seen = []
    for _ in range(2):
        with db.write() as tx:
            link = site.first_start(tx)
            row = rows.get(tx)
        assert link is not None and secrets.parse(secrets.LINK, link)
        assert row is not None and row["hosted_machine_limit"] == 10
        seen.append((link, row["incarnation"]))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]


def test_a_site_with_an_operator_makes_no_link(world: World) -> None:
    with world.db.write() as tx:
        assert site.first_start(tx) is None


def test_a_changed_setting_is_audited_with_before_and_after(world_on_both: World) -> None:
    world = world_on_both
    for _ in range(2):
        with world.act("operator") as ctx:
            changed = site.change(ctx, "ops@example.org", 20)
    assert (changed.contact, changed.hosted_machine_limit) == ("ops@example.org", 20)
    with world.db.read() as tx:
        entries = journal.newest_first(tx, None, Filter("audit"), before=None, limit=10)
    assert [entry["data"] for entry in entries] == [
        {
            "before": {"contact": "", "hosted_machine_limit": 10},
            "after": {"contact": "ops@example.org", "hosted_machine_limit": 20},
        }
    ]


@pytest.mark.parametrize("limit", [-1, 10**9])
def test_a_limit_is_a_number_of_machines(world: World, limit: int) -> None:
    with pytest.raises(Refusal), world.act("operator") as ctx:
        site.change(ctx, None, limit)


def test_an_operators_lost_password_is_mended_on_the_sites_own_machine(world: World) -> None:
    with world.db.write() as tx:
        assert secrets.parse(secrets.LINK, site.operator_link(tx, "operator"))
        for nobody in ("owner", "absent"):
            with pytest.raises(Refusal):
                site.operator_link(tx, nobody)


def test_a_restored_site_is_another_incarnation_whose_secrets_are_dead_and_whose_machines_wait(
    world_on_both: World,
) -> None:
    world = world_on_both
    world.add_machine("gpu-1")
    with world.db.write() as tx:
        before = rows.get(tx)
        assert site.restored(tx) == ["operator"]
    with world.db.read() as tx:
        after = rows.get(tx)
        assert before is not None and after is not None and after["incarnation"] != before["incarnation"]
        assert tx.all(select(api_tokens).where(api_tokens.c.revoked_at.is_(None))) == []
        assert tx.all(select(links).where(links.c.revoked_at.is_(None), links.c.used_at.is_(None))) == []
        assert (
            tx.all(select(join_tokens).where(join_tokens.c.revoked_at.is_(None), join_tokens.c.used_at.is_(None))) == []
        )
        assert after["restored_at"] == tx.now
        kept = {row["quarantine"] for row in tx.all(select(machines.c.quarantine))}
        newest = journal.newest_first(tx, None, Filter("audit"), before=None, limit=1)
    assert kept == {"unknown_work"}
    assert newest[0]["type"] == "site.restored"
    assert world.client("owner").get("/api/v1/me").status_code == 401
