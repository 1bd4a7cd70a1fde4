"""Where a machine stands by its windows: for whom it closes, and when (`domain/shelves.py`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.reservations import Window
from corral.domain.shelves import CLOSING, NEVER, OPEN, Where, micros, places
from tests.facts import window

names = st.lists(st.sampled_from(("w1", "w2", "w3")), unique=True)
windows = st.lists(st.builds(lambda start, named: window(start, start + 1, *named), st.integers(0, 3), names))


def plainly(windows: list[Window]) -> dict[Where, int]:
    """Return the same by asking every workspace about every window."""
    closes = min(micros(one.start) for one in windows)
    found = {CLOSING: closes}
    for workspace in {name for one in windows for name in one.workspaces}:
        others = (micros(one.start) for one in windows if workspace not in one.workspaces)
        for_it = min(others, default=NEVER)
        if for_it > closes:
            found[workspace, for_it == NEVER] = for_it
    return found


@given(windows)
def test_a_machine_closes_for_each_workspace_when_the_first_window_for_others_starts(windows: list[Window]) -> None:
    found = places(windows)
    assert len(found) == len(dict(found))
    assert dict(found) == (plainly(windows) if windows else {OPEN: NEVER})


def test_of_many_windows_each_is_looked_at_once() -> None:
    asked: list[str] = []

    class Counting(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            asked.append(str(name))
            return super().__contains__(name)

    many = [window(number, number + 1) for number in range(500)]
    many = [Window(w.id, w.start, w.end, Counting(f"w{n}-{k}" for k in range(50)), "") for n, w in enumerate(many)]
    assert places(many)[0] == (CLOSING, micros(many[0].start))
    assert len(places(many)) == 51  # the first's own workspaces, until the second starts
    assert not asked
