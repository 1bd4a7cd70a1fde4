"""A workload's hold on one machine: what should run, and what the machine says runs (design decision 1).

`judge` compares the two, level-triggered: the same report twice gives the same verdict. Time is
not its business: a difference that lasts is made Out of Sync by whoever watches the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from corral.domain.resources import Resources


class Seen(str, Enum):
    """Where a machine says an allocation stands. The protocol's words."""

    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    RESTARTING = "restarting"


@dataclass(frozen=True)
class Report:
    """What a machine says of one allocation; the newest wins."""

    id: str
    generation: int
    state: Seen
    step: str = ""
    message: str = ""
    gpus: Sequence[str] = ()
    host_key: str = ""
    oom_kills: int = 0
    exit_code: int | None = None
    restarts: int = 0
    log: Sequence[tuple[int, str]] = ()
    """Provisioning log lines: (number from 1, text)."""
    log_tail: str = ""


@dataclass(frozen=True)
class Desired:
    """What one allocation should be. `stop` is explicit: an allocation is never stopped for being left out."""

    id: str
    generation: int
    stop: bool
    kind: str
    org: str
    workspace: str
    workload: str
    name: str
    image: str
    gpus: Sequence[str]
    resources: Resources
    authorized_keys: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    seconds_left: int | None = None
    drives: Sequence[str] = ()
    """Names of drives kept on each machine."""


@dataclass(frozen=True)
class Outcome:
    """What the machine is told after its report."""

    log_seen: Mapping[str, int] = field(default_factory=dict)
    """Per allocation: the highest provisioning log line that is stored."""
    describe: Sequence[str] = ()
    """Allocations this site does not know."""
    forget: Sequence[str] = ()
    """Allocations whose end is stored."""
    unknown: Sequence[str] = ()
    """All that this site does not know: `describe`, and what an admin has accepted. Not told to the machine."""
    ahead: Sequence[str] = ()
    """Allocations of which the machine claims a generation that this site cannot have given. Not told."""
    newer: Sequence[str] = ()
    """Allocations of which the machine knows something later than this site: a back-up was put back. Not told."""


LOG_LINES_KEPT = 2000
"""Provisioning log lines stored for each allocation; what comes after is confirmed and dropped."""


@dataclass(frozen=True)
class Held:
    """An allocation as this site knows it, for `judge`."""

    generation: int
    stop_asked: bool
    overdue: bool
    """Past its `must_end_by`: its machine ends it without being told."""
    provisioning: bool
    """It never ran."""
    ever_seen: bool
    gpus: Sequence[str] = ()
    behind: bool = False
    """This site's database is older than what the machine knows: a back-up was put back."""


class Verdict(str, Enum):
    CONVERGING = "converging"  # on its way; nothing is wrong
    MATCHES = "matches"  # runs as asked
    DIFFERS = "differs"  # to be put right by the machine; Out of Sync when it lasts
    ENDED = "ended"  # gone, and that was asked or due: capacity is free
    FAILED = "failed"  # could not be started, everything of it is removed


@dataclass(frozen=True)
class Judgement:
    """`wanted` and `seen` are for people; set when the verdict is DIFFERS."""

    verdict: Verdict
    wanted: str = ""
    seen: str = ""


def judge(held: Held, report: Report | None) -> Judgement:
    """Compare an allocation with what its machine says of it (None: nothing)."""
    if report is None:
        return _nothing(held)
    if report.state is Seen.FAILED:
        return Judgement(Verdict.ENDED if held.stop_asked else Verdict.FAILED)
    if report.state is Seen.GONE:
        return _gone(held, report)
    if held.stop_asked or (held.overdue and report.state is Seen.STOPPING):
        return Judgement(Verdict.CONVERGING)
    if report.state is Seen.RUNNING:
        return _running(held, report)
    if held.provisioning and report.state is not Seen.STOPPING:
        return Judgement(Verdict.CONVERGING)
    return _differs(held, f"{report.state.value}: {report.message}" if report.message else report.state.value)


def _nothing(held: Held) -> Judgement:
    """The machine does not know it: not told yet; or, where the database is behind, it ended and was forgotten."""
    if not held.ever_seen:
        return Judgement(Verdict.CONVERGING)
    return Judgement(Verdict.ENDED) if held.behind else _differs(held, "nothing of it on the machine")


def _gone(held: Held, report: Report) -> Judgement:
    """Gone frees the capacity only when the machine cannot start it again.

    That is so when it knows of the stop (its generation has come as far as ours), when its time
    was over, or when its generation is beyond ours: then a later stop was lost with a restored database.
    """
    if held.stop_asked and report.generation >= held.generation:
        return Judgement(Verdict.ENDED)
    if held.overdue or report.generation > held.generation:
        return Judgement(Verdict.ENDED)
    return _differs(held, "its container is gone")


def _running(held: Held, report: Report) -> Judgement:
    if set(report.gpus) == set(held.gpus):
        return Judgement(Verdict.MATCHES)
    return _differs(held, f"running with GPUs {', '.join(sorted(report.gpus)) or 'none'}")


def _differs(held: Held, seen: str) -> Judgement:
    if held.stop_asked:
        wanted = "stopped and removed"
    else:
        wanted = f"running with GPUs {', '.join(sorted(held.gpus))}" if held.gpus else "running"
    return Judgement(Verdict.DIFFERS, wanted, seen)


MAX_AHEAD = 1_000_000
"""A restored database may be behind a machine by so many generations; no back-up is older than that."""
MAX_ADOPTED_GENERATION = 2**31


def is_plausible(known: int, said: int) -> bool:
    """Return whether this site may once have given the generation that a machine claims."""
    return said <= known + MAX_AHEAD


_INT_MAX = 2**31 - 1


def bounded(value: int) -> int:
    """Return a machine's number as one that every database keeps."""
    return max(0, min(value, _INT_MAX))


def legible(text: str, limit: int) -> str:
    """Return a machine's text as one that every database keeps: no NUL, no half characters, cut at `limit`."""
    return text[:limit].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
