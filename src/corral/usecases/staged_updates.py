"""Updating all machines of a cluster that are behind, in stages (spec 10, "Update agents").

All of it stands in rows: `advance` looks at where every machine is and does what is due next, so it goes on after a
restart where it stood. One at a time for an organisation in a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from corral.domain import updates as rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Entry, Subject
from corral.domain.machines import MachineState
from corral.domain.updates import AT_ONCE, STAGES, Candidate, Outcome, Standing, State, Step
from corral.store import clusters as cluster_rows
from corral.store import fleet
from corral.store import machines as machine_rows
from corral.store import updates as rows
from corral.store.transaction import SITE, Actor, Row, Scope, Tx
from corral.usecases import clusters
from corral.usecases import updates as one
from corral.usecases.context import Context

_ALL = 1_000_000


@dataclass(frozen=True)
class Member:
    """A machine of an update. `release`: its agent's now; `message`: why, or what it works on."""

    name: str
    stage: int
    step: Step
    message: str
    release: str


@dataclass(frozen=True)
class Progress:
    """An update of many. `id` None: none was stored, for none would take part or it is a preview."""

    id: str | None
    release: str
    outcome: Outcome
    stage: int
    message: str
    counts: Sequence[dict[str, int]]
    """By stage: how many machines in each step."""
    members: Sequence[Member] = ()
    by: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class _Plan:
    rows: Sequence[Row]
    """The machines that are behind."""
    stages: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why, by id."""

    def member(self, row: Row) -> Member:
        id = row["id"]
        step = Step.LEFT_OUT if id in self.left_out else Step.WAITING
        return Member(row["name"], self.stages[id], step, self.left_out.get(id, ""), row["release"])


def preview(ctx: Context, cluster: str, served: str, after: tuple[int, str] | None, limit: int) -> Progress:
    """Say which machines would be asked in which stage, and which not and why; changes nothing. Errors: `NOT_FOUND`."""
    plan = _planned(ctx, clusters.find(ctx, cluster)["cluster_id"], served)
    members = sorted((plan.member(row) for row in plan.rows), key=_place)
    later = [member for member in members if after is None or _place(member) > after]
    return Progress(None, served, Outcome.RUNNING, 0, "", _counted(members), later[:limit])


def start(ctx: Context, cluster: str, served: str) -> Progress:
    """Begin to update all machines that are behind and Up. Errors: `NOT_FOUND`, `CONFLICT` (one goes on)."""
    cluster_id = clusters.find(ctx, cluster)["cluster_id"]
    fleet.lock(ctx.tx, ctx.scope, cluster_id)
    before = rows.latest(ctx.tx, ctx.scope, cluster_id)
    if before is not None and before["ended_at"] is None:
        raise Refusal(
            "CONFLICT",
            f"An update to release {before['release']} goes on here. Wait for its end, or stop it first "
            "(corral cluster stop-update).",
        )
    plan = _planned(ctx, cluster_id, served)
    members = [plan.member(row) for row in plan.rows]
    taking_part = sum(member.step is Step.WAITING for member in members)
    if not taking_part:
        said = f"No machine that is Up is behind release {served}: nothing was asked."
        return Progress(None, served, Outcome.DONE, 0, said, _counted(members))
    id = ctx.new_id()
    values = {"id": id, "cluster_id": cluster_id, "release": served, "created_by": ctx.user.id}
    machines = [
        {"machine_id": row["id"], "stage": member.stage, "state": member.step.value, "message": member.message}
        for row, member in zip(plan.rows, members, strict=True)
    ]
    rows.add(ctx.tx, ctx.scope, values, machines)
    _record(ctx.tx, ctx.scope, cluster_id, ("started", served, ""), ctx.actor, taking_part)
    return _progress(ctx, _there(rows.get(ctx.tx, ctx.scope, id)))


def progress(ctx: Context, cluster: str, after: tuple[int, str] | None, limit: int) -> Progress:
    """Return the newest update, with machines by stage and name. Errors: `NOT_FOUND` (none was ever started, too)."""
    row = _newest(ctx, cluster)
    return _progress(ctx, row, rows.page(ctx.tx, ctx.scope, row["id"], after, limit))


def stop(ctx: Context, cluster: str) -> Progress:
    """Ask no more machines; those that were asked go on. One that has ended stays so. Errors: as of `progress`."""
    found = _newest(ctx, cluster)
    fleet.lock(ctx.tx, ctx.scope, found["cluster_id"])
    row = _newest(ctx, cluster)
    if row["ended_at"] is None:
        _end(ctx.tx, ctx.scope, row, Outcome.STOPPED, f"stopped by {ctx.actor.name}", ctx.actor)
    return _progress(ctx, _newest(ctx, cluster))


# -- what goes on by itself ---------------------------------------------------------------------


def advance(tx: Tx, update: Row, served: str, watched_since: datetime) -> None:
    """Do what is due next in an update. `watched_since`: the control plane was there to hear machines since then."""
    scope = Scope(update["org_id"])
    fleet.lock(tx, scope, update["cluster_id"])
    row = _there(rows.get(tx, scope, update["id"]))
    failures = _look(tx, scope, row, watched_since)
    if row["ended_at"] is not None:
        return
    if row["release"] != served:
        _end(tx, scope, row, Outcome.STOPPED, f"the site serves release {served} now")
    elif failures:
        _end(tx, scope, row, Outcome.FAILED, f"stopped, because {failures[0]}")
    elif not cluster_rows.is_used(tx, scope, row["cluster_id"]):
        _end(tx, scope, row, Outcome.STOPPED, "the cluster was taken out of the organisation")
    else:
        _go_on(tx, scope, row)


def _look(tx: Tx, scope: Scope, row: Row, watched_since: datetime) -> list[str]:
    """Note where the machines that were asked stand; return those that did not come back, each with why."""
    failures = []
    for machine in rows.standing(tx, scope, row["id"], Step.ASKED, None, _ALL):
        seen = _standing(machine, tx.now - max(machine["update_since"] or tx.now, watched_since))
        step, message = rules.judged(Step.ASKED, seen, row["release"])
        if step is Step.ASKED:
            continue
        rows.save_machine(tx, scope, row["id"], machine["id"], step, message[:300])
        if step is Step.FAILED:
            failures.append(f"{machine['name']} did not come back: {message}")
            if seen.asked_release == row["release"]:
                one.fail(tx, machine_rows.ref_of(machine), machine, message)
    return failures


def _go_on(tx: Tx, scope: Scope, row: Row) -> None:
    """Ask who is next, or go to the next stage when nobody of this one is left."""
    stage = row["stage"]
    while stage < STAGES:
        waited_for = len(rows.standing(tx, scope, row["id"], Step.ASKED, stage, AT_ONCE))
        waiting = rows.standing(tx, scope, row["id"], Step.WAITING, stage, AT_ONCE)
        if not waited_for and not waiting:
            stage += 1
            continue
        asked = _ask(tx, scope, row, waiting[: AT_ONCE - waited_for])
        if waited_for or asked:
            break
    if stage == STAGES:
        _end(tx, scope, row, Outcome.DONE, "")
    elif stage != row["stage"]:
        rows.save(tx, scope, row["id"], {"stage": stage})


def _ask(tx: Tx, scope: Scope, row: Row, machines: Sequence[Row]) -> int:
    """Ask those whose turn it is; return how many of them have to come back."""
    asked = 0
    for machine in machines:
        step, message = rules.judged(Step.WAITING, _standing(machine), row["release"])
        rows.save_machine(tx, scope, row["id"], machine["id"], step, message[:300])
        if step is not Step.ASKED:
            continue
        asked += 1
        if machine["update_state"] not in (State.ASKED.value, State.RUNNING.value):
            one.tell(tx, machine, row["release"], SITE)
    return asked


def _end(tx: Tx, scope: Scope, row: Row, outcome: Outcome, message: str, by: Actor = SITE) -> None:
    """End an update; who was not asked is left out, who was asked goes on."""
    rows.leave_out_waiting(tx, scope, row["id"], "the update ended before its turn")
    rows.save(tx, scope, row["id"], {"ended_at": tx.now, "outcome": outcome.value, "message": message[:300]})
    _record(tx, scope, row["cluster_id"], (outcome.value, row["release"], message[:300]), by)


def _planned(ctx: Context, cluster_id: str, served: str) -> _Plan:
    behind = rows.behind(ctx.tx, ctx.scope, cluster_id, served)
    why = {row["id"]: rules.left_out(_standing(row), served) for row in behind}
    left_out = {id: text[:300] for id, text in why.items() if text}
    able = [Candidate(row["id"], row["name"], row["works"]) for row in behind if row["id"] not in left_out]
    stages = {machine.id: stage for machine, stage in rules.staged(able)}
    return _Plan(behind, {**dict.fromkeys(left_out, STAGES - 1), **stages}, left_out)


def _standing(row: Row, asked_for: timedelta = timedelta()) -> Standing:
    return Standing(
        row["release"],
        MachineState(row["state"]),
        row["removed_at"] is not None,
        row["update_release"],
        State(row["update_state"]) if row["update_state"] else None,
        row["update_message"],
        asked_for,
    )


def _newest(ctx: Context, cluster: str) -> Row:
    row = rows.latest(ctx.tx, ctx.scope, clusters.find(ctx, cluster)["cluster_id"])
    if row is None:
        raise not_found()
    return row


def _progress(ctx: Context, row: Row, page: Sequence[Row] = ()) -> Progress:
    counts: list[dict[str, int]] = [{} for _ in range(STAGES)]
    for count in rows.counts(ctx.tx, ctx.scope, row["id"]):
        counts[count["stage"]][count["state"]] = count["machines"]
    outcome = Outcome(row["outcome"]) if row["outcome"] else Outcome.RUNNING
    return Progress(
        row["id"],
        row["release"],
        outcome,
        row["stage"],
        row["message"],
        counts,
        [_member(machine, row["release"]) for machine in page],
        row["by"] or "",
        row["created_at"],
        row["ended_at"],
    )


def _member(row: Row, release: str) -> Member:
    step = Step(row["state"])
    works_on = row["update_message"] if step is Step.ASKED and row["update_release"] == release else ""
    return Member(row["name"], row["stage"], step, row["message"] or works_on, row["release"])


def _counted(members: Sequence[Member]) -> list[dict[str, int]]:
    counts: list[dict[str, int]] = [{} for _ in range(STAGES)]
    for member in members:
        here = counts[member.stage]
        here[member.step.value] = here.get(member.step.value, 0) + 1
    return counts


def _place(member: Member) -> tuple[int, str]:
    return member.stage, member.name


def _record(
    tx: Tx, scope: Scope, cluster_id: str, what: tuple[str, str, str], by: Actor, machines: int | None = None
) -> None:
    state, release, reason = what
    count = {} if machines is None else {"machines": machines}
    data = {"state": state, "release": release, "reason": reason, **count}
    tx.record(Entry("cluster.update", Subject(org=scope.org, cluster=cluster_id), data), by)


def _there(row: Row | None) -> Row:
    assert row is not None, "updates are never deleted"
    return row
