"""Rows of updates of a cluster's agents, and of machines whose own update goes on or failed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, func, insert, select, text, tuple_, union, update

from corral.domain.machines import MachineState
from corral.domain.updates import State, Step
from corral.store.tables.machines import machines
from corral.store.tables.updates import update_machines, updates
from corral.store.tables.users import users
from corral.store.tables.workloads import allocations
from corral.store.transaction import Row, Scope, Tx

_M = machines.c
_UM = update_machines.c
_AS_IT_IS = (
    _M.id,
    _M.org_id,
    _M.cluster_id,
    _M.name,
    _M.state,
    _M.state_since,
    _M.release,
    _M.removed_at,
    _M.update_ask,
    _M.update_release,
    _M.update_before,
    _M.update_state,
    _M.update_message,
    _M.update_since,
)
_SOMETHING = text("machines.update_state <> ''")
_WAITED_FOR = text("update_machines.state = 'asked'")
"""As the partial indexes have it."""


def add(tx: Tx, scope: Scope, values: Mapping[str, Any], taking_part: Sequence[Mapping[str, Any]]) -> None:
    """Write an update and its machines (`machine_id`, `stage`, `state`, `message`)."""
    tx.run(insert(updates).values(org_id=scope.org, created_at=tx.now, **values))
    rows = [{"org_id": scope.org, "update_id": values["id"], **row} for row in taking_part]
    if rows:
        tx.run(insert(update_machines), rows)


def get(tx: Tx, scope: Scope, id: str) -> Row | None:
    return tx.one(_named().where(updates.c.org_id == scope.org, updates.c.id == id))


def latest(tx: Tx, scope: Scope, cluster_id: str) -> Row | None:
    """Return the tenancy's newest update, with `by` (the login of who started it)."""
    here = (updates.c.org_id == scope.org, updates.c.cluster_id == cluster_id)
    return tx.one(_named().where(*here).order_by(updates.c.created_at.desc(), updates.c.id.desc()).limit(1))


def _named() -> Select[Any]:
    return select(updates, users.c.login.label("by")).outerjoin(users, users.c.id == updates.c.created_by)


def unsettled(tx: Tx) -> Sequence[Row]:
    """Return the updates of all tenants that go on, or ended with machines that were asked and have not answered."""
    running = select(updates.c.id).where(updates.c.ended_at.is_(None))
    waited_for = select(_UM.update_id).where(_WAITED_FOR)
    return tx.all(select(updates).where(updates.c.id.in_(union(running, waited_for))).order_by(updates.c.id))


def save(tx: Tx, scope: Scope, id: str, values: Mapping[str, Any]) -> None:
    tx.run(update(updates).where(updates.c.org_id == scope.org, updates.c.id == id).values(**values))


def save_machine(tx: Tx, scope: Scope, id: str, machine_id: str, step: Step, message: str) -> None:
    """Say where a machine of an update stands."""
    which = (_UM.org_id == scope.org, _UM.update_id == id, _UM.machine_id == machine_id)
    tx.run(update(update_machines).where(*which).values(state=step.value, message=message))


def leave_out_waiting(tx: Tx, scope: Scope, id: str, message: str) -> None:
    """Say of every machine that waits for its turn that it gets none."""
    which = (_UM.org_id == scope.org, _UM.update_id == id, _UM.state == Step.WAITING.value)
    tx.run(update(update_machines).where(*which).values(state=Step.LEFT_OUT.value, message=message))


def standing(tx: Tx, scope: Scope, id: str, step: Step, stage: int | None, limit: int) -> Sequence[Row]:
    """Return machines of an update in a step (of one stage, or of all), by name, as they are."""
    which = [_UM.org_id == scope.org, _UM.update_id == id, _UM.state == step.value]
    if stage is not None:
        which.append(_UM.stage == stage)
    query = select(*_AS_IT_IS).join(update_machines, and_(_UM.machine_id == _M.id, _UM.org_id == _M.org_id))
    return tx.all(query.where(*which).order_by(_M.name, _M.id).limit(limit))


def counts(tx: Tx, scope: Scope, id: str) -> Sequence[Row]:
    """Return how many machines (`machines`) are in each `stage` and `state`."""
    which = (_UM.org_id == scope.org, _UM.update_id == id)
    return tx.all(
        select(_UM.stage, _UM.state, func.count().label("machines")).where(*which).group_by(_UM.stage, _UM.state)
    )


def page(tx: Tx, scope: Scope, id: str, after: tuple[int, str] | None, limit: int) -> Sequence[Row]:
    """Return machines of an update: `stage`, `state`, `message`, `name`, `release`, by stage and name."""
    query = (
        select(_UM.stage, _UM.state, _UM.message, _M.name, _M.release, _M.update_message, _M.update_release)
        .join(machines, and_(_UM.machine_id == _M.id, _UM.org_id == _M.org_id))
        .where(_UM.org_id == scope.org, _UM.update_id == id)
        .order_by(_UM.stage, _M.name)
        .limit(limit)
    )
    return tx.all(query if after is None else query.where(tuple_(_UM.stage, _M.name) > tuple_(*after)))


def behind(tx: Tx, scope: Scope, cluster_id: str, served: str) -> Sequence[Row]:
    """Return the enrolled machines whose agent is of another release, with `works`: how many workloads hold something
    of each."""
    works = (
        select(func.count())
        .where(
            allocations.c.org_id == _M.org_id, allocations.c.machine_id == _M.id, allocations.c.released_at.is_(None)
        )
        .scalar_subquery()
    )
    return tx.all(
        select(*_AS_IT_IS, works.label("works"))
        .where(_M.org_id == scope.org, _M.cluster_id == cluster_id, _M.removed_at.is_(None))
        .where(_M.release.not_in(("", served)))
        .order_by(_M.name)
    )


def asked_of(tx: Tx, scope: Scope, machine_id: str) -> Row | None:
    """Return what an enrolled machine is asked to update to."""
    columns = (_M.update_ask, _M.update_release, _M.update_state)
    return tx.one(select(*columns).where(_M.org_id == scope.org, _M.id == machine_id, _M.removed_at.is_(None)))


def silent(tx: Tx) -> Sequence[Row]:
    """Return the machines of all tenants that said they work on their update, and are Down."""
    running = (_SOMETHING, _M.update_state == State.RUNNING.value, _M.removed_at.is_(None))
    return tx.all(select(*_AS_IT_IS).where(*running, _M.state == MachineState.DOWN.value).order_by(_M.id))


def unheeded(tx: Tx, since: datetime) -> Sequence[Row]:
    """Return the machines of all tenants that were asked, and have been Up, since then, and said nothing of it."""
    asked = (_SOMETHING, _M.update_state == State.ASKED.value, _M.removed_at.is_(None))
    there = (_M.state == MachineState.UP.value, _M.state_since <= since, _M.update_since <= since)
    return tx.all(select(*_AS_IT_IS).where(*asked, *there).order_by(_M.id))


def of_other_releases(tx: Tx, served: str) -> Sequence[Row]:
    """Return the machines of all tenants that are asked to be of a release which the site does not serve."""
    asked: Collection[str] = (State.ASKED.value, State.RUNNING.value)
    return tx.all(
        select(*_AS_IT_IS)
        .where(_SOMETHING, _M.update_state.in_(asked), _M.update_release != served, _M.removed_at.is_(None))
        .order_by(_M.id)
    )
