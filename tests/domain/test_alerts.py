"""One alert of a condition, and how often people are told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import alerts as rules
from corral.domain.alerts import QUIET, Alert, Kind, Told
from corral.domain.errors import Refusal
from corral.domain.events import TYPES

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


@dataclass
class Flapping:
    """One condition over time, told of as the follower of the journal does it."""

    kind: Kind = Kind.MACHINE_DOWN
    now: datetime = START
    alerts: list[Alert] = field(default_factory=list)
    told: list[tuple[datetime, Told]] = field(default_factory=list)

    def down(self, after: timedelta = timedelta(0)) -> Flapping:
        self._pass(after)
        newest = self.alerts[-1] if self.alerts else None
        alert, told = rules.began(newest, self.kind, self.now)
        if alert.count == 1:
            self.alerts.append(alert)
        else:
            self.alerts[-1] = alert
        return self._note(told)

    def up(self, after: timedelta = timedelta(0), *, aloud: bool = True) -> Flapping:
        self._pass(after)
        if self.alerts and self.alerts[-1].closed_at is None:
            self.alerts[-1], told = rules.ended(self.alerts[-1], self.now, aloud=aloud)
            self._note(told)
        return self

    def wait(self, after: timedelta) -> Flapping:
        self._pass(after)
        return self

    def _pass(self, time: timedelta) -> None:
        """Let time pass; what waits is told when it is due."""
        until = self.now + time
        if self.alerts and self.alerts[-1].tell_at is not None and self.alerts[-1].tell_at <= until:
            self.now = max(self.now, self.alerts[-1].tell_at)
            self.alerts[-1], told = rules.waited(self.alerts[-1], self.now)
            self._note(told)
        self.now = until

    def _note(self, told: Told | None) -> Flapping:
        if told is not None:
            self.told.append((self.now, told))
        return self

    @property
    def words(self) -> list[str]:
        return [told.value for _, told in self.told]


def test_an_alert_is_told_when_it_opens_and_when_it_closes() -> None:
    one = Flapping().down().up(MINUTE)
    assert one.words == ["open", "closed"]
    assert [alert.count for alert in one.alerts] == [1]
    assert one.alerts[0].closed_at == START + MINUTE


def test_down_again_soon_counts_on_the_same_alert_and_tells_nothing_new() -> None:
    one = Flapping().down().up(MINUTE).down(MINUTE).up(MINUTE).down(MINUTE).up(MINUTE)
    assert one.words == ["open", "closed"]
    assert [alert.count for alert in one.alerts] == [3]


def test_down_again_after_a_quiet_time_is_a_new_alert() -> None:
    one = Flapping().down().up(MINUTE).down(QUIET)
    assert one.words == ["open", "closed", "open"]
    assert [alert.count for alert in one.alerts] == [1, 1]


def test_who_stays_down_is_told_when_the_quiet_time_is_over() -> None:
    one = Flapping().down().up(MINUTE).down(MINUTE)
    one.wait(QUIET - MINUTE - timedelta(microseconds=1))
    assert one.words == ["open", "closed"]
    one.wait(timedelta(microseconds=1))
    assert one.words == ["open", "closed", "open"]


def test_an_end_is_told_only_if_the_beginning_was() -> None:
    one = Flapping().down().up(MINUTE).down(MINUTE).up(MINUTE).wait(QUIET * 3)
    assert one.words == ["open", "closed"]


def test_an_end_of_its_own_is_not_told() -> None:
    one = Flapping(Kind.CLONE_SUSPECTED).down().up(MINUTE, aloud=False)
    assert one.words == ["open"]
    assert one.alerts[-1].closed_at is not None
    # And what comes back at once is told when it is no longer quiet.
    assert one.down(MINUTE).words == ["open"]
    assert one.wait(QUIET).words == ["open", "open"]


def test_what_happens_again_while_open_is_told_again_after_its_time() -> None:
    one = Flapping(Kind.TOKEN_REPLAYED).down().down(QUIET).down(timedelta(hours=12))
    assert one.words == ["open"]
    assert one.down(timedelta(hours=12)).words == ["open", "open"]
    assert one.alerts[-1].count == 4
    assert Flapping().down().down(timedelta(days=9)).words == ["open"]


TIMES = st.integers(0, 40 * 60).map(lambda seconds: timedelta(seconds=seconds))


@given(st.lists(st.tuples(TIMES, st.sampled_from(["down", "up", "wait"])), max_size=60))
def test_however_a_machine_flaps_few_messages_tell_the_truth(acts: list[tuple[timedelta, str]]) -> None:
    one = Flapping()
    for after, act in acts:
        getattr(one, act)(after)
        assert sum(alert.closed_at is None for alert in one.alerts) <= 1
        open_since = one.alerts[-1].last_at if one.alerts and one.alerts[-1].closed_at is None else None
        if open_since is not None and one.now >= open_since + QUIET:
            assert one.words[-1] == "open", "down for longer than it is quiet, and nobody knows"
        if one.alerts and one.alerts[-1].closed_at is not None:
            assert one.words[-1] == "closed"
    # Each closing follows its opening, and openings come at most once in a quiet time.
    assert one.words == ["open", "closed"] * (len(one.words) // 2) + ["open"] * (len(one.words) % 2)
    openings = [at for at, told in one.told if told is Told.OPEN]
    assert all(later - earlier >= QUIET for earlier, later in pairwise(openings))
    assert len(one.told) <= 2 * ((one.now - START) // QUIET + 1)


@given(st.lists(TIMES, min_size=1, max_size=60), st.sampled_from(list(rules.OPENING)))
def test_what_repeats_without_end_is_told_no_more_than_once_in_a_quiet_time(gaps: list[timedelta], kind: Kind) -> None:
    one = Flapping(kind)
    for gap in gaps:
        one.down(gap)
    assert len(one.told) <= (one.now - START) // QUIET + 1
    assert len(one.alerts) == 1 and one.alerts[0].count == len(gaps)


def test_entries_whose_times_cross_do_not_turn_time_back() -> None:
    later, _ = rules.began(None, Kind.MACHINE_DOWN, START)
    after, told = rules.ended(later, START - timedelta(seconds=3), aloud=True)
    assert (after.closed_at, after.told_at, told) == (START, START, Told.CLOSED)
    again, _ = rules.began(after, Kind.MACHINE_DOWN, START - timedelta(seconds=2))
    assert again.last_at == START and again.count == 2


def test_what_has_no_end_of_its_own_closes_in_time() -> None:
    alert = Alert(START, START)
    assert not rules.lapsed(Kind.TOKEN_REPLAYED, alert, START + timedelta(hours=23))
    assert rules.lapsed(Kind.TOKEN_REPLAYED, alert, START + timedelta(days=1))
    assert not rules.lapsed(Kind.BUDGET, alert, datetime(2026, 3, 31, 23, 59, tzinfo=timezone.utc))
    assert rules.lapsed(Kind.BUDGET, alert, datetime(2026, 4, 1, tzinfo=timezone.utc))
    assert not rules.lapsed(Kind.MACHINE_DOWN, alert, START + timedelta(days=900))


# -- what the journal says


def entry(type: str, **data: Any) -> dict[str, Any]:
    return {"type": type, "machine_id": "m", "workspace_id": "w", "data": {"name": "gpu-1", **data}}


@pytest.mark.parametrize(
    ("said", "kind", "about", "begins"),
    [
        (entry("cluster.node.down"), Kind.MACHINE_DOWN, "m", True),
        (entry("cluster.node.up"), Kind.MACHINE_DOWN, "m", False),
        (entry("cluster.node.gpu_fault", gpu="GPU-7"), Kind.GPU_FAULT, "GPU-7", True),
        (entry("cluster.node.gpu_fault_cleared", gpu="GPU-7"), Kind.GPU_FAULT, "GPU-7", False),
        (entry("cluster.node.cloned"), Kind.CLONE_SUSPECTED, "m", True),
        (entry("cluster.node.quarantine_released"), Kind.CLONE_SUSPECTED, "m", False),
        (entry("cluster.node.upgrade", state="failed"), Kind.AGENT_UPDATE_FAILED, "m", True),
        (entry("cluster.node.upgrade", state="done"), Kind.AGENT_UPDATE_FAILED, "m", False),
        (entry("cluster.token.replayed", token="abc"), Kind.TOKEN_REPLAYED, "abc", True),
        (entry("workspace.budget.reached", month="2026-03", percent=80), Kind.BUDGET, "w/2026-03/80", True),
    ],
)
def test_what_an_entry_says_of_a_condition(said: dict[str, Any], kind: Kind, about: str, begins: bool) -> None:
    sign = rules.sign(said)
    assert sign is not None and (sign.kind, sign.about, sign.begins) == (kind, about, begins)
    assert said["type"] in rules.SIGNS


def test_an_update_that_was_only_asked_for_says_nothing() -> None:
    assert rules.sign(entry("cluster.node.upgrade", state="asked")) is None
    assert rules.sign(entry("cluster.node.cordoned")) is None


def test_every_kind_of_alert_has_a_sign_and_every_sign_is_an_event_type() -> None:
    assert set(TYPES) >= rules.SIGNS


def test_hostile_text_in_an_entry_stays_on_one_short_line() -> None:
    sign = rules.sign(entry("cluster.node.gpu_fault", gpu="G" * 999, code="79", reason="a\r\nBcc: x\u202e" * 99))
    assert sign is not None
    title = rules.one_line(sign.title)
    assert len(title) <= rules.TITLE_MAX and title.isprintable() and len(sign.about) <= rules.ABOUT_MAX


# -- what rules choose


def test_kinds_are_the_eight_of_the_specification() -> None:
    names = "machine_down machine_up gpu_fault gpu_fault_cleared budget token_replayed clone_suspected"
    assert [kind.value for kind in Kind] == [*names.split(), "agent_update_failed"]
    assert rules.kinds(["budget", "machine_up", "budget"]) == (Kind.MACHINE_UP, Kind.BUDGET)
    with pytest.raises(Refusal, match="machine_down"):
        rules.kinds(["machine"])


def test_the_end_of_an_alert_is_a_kind_for_rules_and_none_of_alerts() -> None:
    assert rules.told_as(Kind.MACHINE_DOWN, Told.CLOSED) is Kind.MACHINE_UP
    assert rules.told_as(Kind.GPU_FAULT, Told.OPEN) is Kind.GPU_FAULT
    assert rules.opening_kind("budget") is Kind.BUDGET
    with pytest.raises(Refusal, match="ask for machine_down"):
        rules.opening_kind("machine_up")
    with pytest.raises(Refusal, match="is none"):
        rules.opening_kind("x")
