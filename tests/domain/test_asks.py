"""Whom an ask must not overtake: remembered by workspace, as it would be judged anew (`domain/asks.py`)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.asks import Ahead, PlacementAsk
from corral.domain.fleet import Fleet
from corral.domain.resources import Ask, Resources
from tests.facts import GIB, machine

FLEET = Fleet.of([machine("a", vcpu=64), machine("b", vcpu=128), machine("c", ("A100",) * 2, vcpu=16)])
KINDS = [one.kind for one in FLEET.machines.values()]
PLENTY = Resources(0, 256, 4096 * GIB, 65536 * GIB)
asks = st.builds(
    PlacementAsk,
    st.builds(Ask, st.integers(0, 9), st.none() | st.integers(1, 40)),
    machine=st.none() | st.sampled_from(("a", "b", "gone")),
    gpu_model=st.none() | st.sampled_from(("A100", "H100")),
    workspace=st.sampled_from(("w1", "w2")),
    room=st.builds(Resources, st.just(0), st.integers(0, 60), st.just(4096 * GIB), st.just(65536 * GIB)),
)
steps = st.lists(asks | st.tuples(st.sampled_from(("w1", "w2")), st.integers(-1, 20)), max_size=12)


def said(ahead: Ahead) -> tuple[set[str], list[bool], bool]:
    return set(ahead.kept(FLEET.machines)), [ahead.waits_for(kind) for kind in KINDS], bool(ahead)


@given(steps)
def test_it_says_what_it_would_were_it_made_anew(steps: list[PlacementAsk | tuple[str, int]]) -> None:
    """An ask is added; or a workspace's are forgotten (-1), or left so much less vCPU."""
    ahead, now = Ahead(), list[PlacementAsk]()
    for step in steps:
        if isinstance(step, PlacementAsk):
            ahead.add(step)
            now.append(step)
        elif step[1] < 0:
            ahead.forget(step[0])
            now = [ask for ask in now if ask.workspace != step[0]]
        else:
            taken = Resources(0, step[1])
            ahead.narrow(step[0], taken)
            rooms = [(ask, (ask.room or PLENTY) - (taken if ask.workspace == step[0] else Resources())) for ask in now]
            now = [replace(ask, room=room) for ask, room in rooms]
        anew = Ahead()
        for ask in now:
            anew.add(ask)
        assert said(ahead) == said(anew)


def test_what_has_no_limit_is_left_no_less() -> None:
    ahead = Ahead()
    ahead.add(PlacementAsk(Ask(8), workspace="w1"))
    ahead.narrow("w1", PLENTY)
    assert said(ahead)[1] == [True, True, False]
