"""The tests' own world stands: its people are who they say, on both databases."""

from __future__ import annotations

from tests.world import PEOPLE, World


def test_everybody_of_the_world_can_enter(world_on_both: World) -> None:
    world_on_both.add_machine("gpu-1")
    world_on_both.add_workload("dev", "gpu-1", gpu_count=1)
    for who, place in PEOPLE.items():
        with world_on_both.act(who, org=place[0] if place else None) as ctx:
            assert ctx.user.login == who
            assert ctx.role == (place[1] if place else None)


def test_the_app_answers(world: World) -> None:
    assert world.client().get("/healthz").json() == {"status": "ok"}
