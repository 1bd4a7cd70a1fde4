"""Refusals that somebody can lift say whom to ask: the organisation's contact line, else the operator's (spec 20)."""

from __future__ import annotations

import pytest

from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal
from corral.usecases import access, orgs, site
from tests.placing import create
from tests.world import World


def take_access(world: World) -> None:
    with world.act("admin", "acme", "research") as ctx:
        access.remove(ctx, "default")


def set_quota(world: World) -> None:
    path = "/api/v1/orgs/acme/workspaces/research/access/default"
    answer = world.client("admin").put(path, json={"pools": ["*"], "quota": {"gpus": 1}})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("before", "code"),
    [(lambda _: None, "NO_CAPACITY"), (take_access, "NO_ACCESS"), (set_quota, "QUOTA_EXCEEDED")],
)
def test_a_refusal_names_whom_to_ask(world: World, before: object, code: str) -> None:
    assert callable(before)
    before(world)

    def said() -> str:
        with pytest.raises(Refusal) as refused:
            create(world, Creation("dev", gpus=2))
        assert refused.value.code == code
        return refused.value.message

    assert "an admin of the organisation" in said()
    with world.act("operator") as ctx:
        site.change(ctx, "ops@example.org", None)
    assert "ops@example.org" in said()
    with world.act("owner", "acme") as ctx:
        orgs.change(ctx, None, "the GPU desk")
    assert "the GPU desk" in said() and "ops@example.org" not in said()
