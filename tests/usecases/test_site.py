"""The site: its first start and its settings (spec 05)."""

from __future__ import annotations

import pytest

from corral.domain import secrets
from corral.domain.errors import Refusal
from corral.store import journal
from corral.store import site as rows
from corral.store.engine import Database
from corral.store.journal import Filter
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
