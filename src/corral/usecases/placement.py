"""Placing workloads, many in one transaction (spec 20 and 30; design decision 5).

Every rule is read again under the tenancy's lock: who asks, access, quota, whether the name is
free, the keys, the machines. An ask that is refused spoils nothing for the others: everything is
judged before anything is written. What fails after that (the last guards in the database) fails
the transaction; the worker then does each ask again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from corral.domain import compute_clusters as rules
from corral.domain import quotas
from corral.domain.asks import Ahead, PlacementAsk, Plan
from corral.domain.compute_clusters import Creation
from corral.domain.errors import Refusal, not_found
from corral.domain.events import Entry, Subject
from corral.domain.ids import shown
from corral.domain.permissions import Rule
from corral.domain.placement import in_words, refusals, try_place, why_it_waits
from corral.domain.workloads import Kind, must_end_by, sure_end
from corral.store import access, allocations, clusters, fleet, ssh_keys, workloads
from corral.store.transaction import Actor, Row, Scope, Tx, Wake
from corral.usecases import idempotency
from corral.usecases.compute_clusters import Around, ComputeCluster, MachineTraits, built, own_keys
from corral.usecases.context import Context
from corral.usecases.fleets import Fleets, Grant, Tenancy, Waiting
from corral.usecases.identity import Caller, Place, enter
from corral.usecases.machines import contact
from corral.usecases.placement_rows import allocation_row, check_not_fenced, hold_rows, workload_row

REASONS_ANSWERED = 1_000


@dataclass(frozen=True)
class CreateAsk:
    """One request to create a compute cluster. `render` makes its answer, kept under `key` when there is one."""

    caller: Caller
    rule: Rule
    place: Place
    creation: Creation
    render: Callable[[Context, ComputeCluster], dict[str, Any]]
    key: idempotency.Key | None = None
    status: int = 201


@dataclass(frozen=True)
class _Ready:
    """An ask of somebody who may ask, and the cluster it goes to. `number` is its place in the batch."""

    number: int
    ask: CreateAsk
    ctx: Context
    cluster: Row

    @property
    def tenancy(self) -> tuple[str, str]:
        return self.cluster["cluster_id"], self.ctx.org.id

    @property
    def where(self) -> str:
        """For messages."""
        return f"Workspace '{self.ctx.workspace.slug}' on cluster '{self.cluster['slug']}'"


@dataclass(frozen=True)
class _Made:
    """The rows of one new workload; `held` None while it waits."""

    one: _Ready
    workload: Mapping[str, Any]
    plan: Plan | None = None
    held: Mapping[str, Any] | None = None
    keys: Sequence[str] = ()


class _Batch:
    """What is looked up once for all asks of a batch."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self._entered: dict[tuple[str | None, Rule, Place], Context] = {}
        self._wanted_names: dict[str, set[str]] = {}
        self._taken: dict[str, set[str]] = {}
        self._keys: dict[str, list[str]] = {}
        self._clusters: dict[tuple[str, str | None], Row] = {}

    def ready(self, number: int, ask: CreateAsk) -> _Ready:
        """Let the caller in and find the cluster. One who asks for several things at once is let in once."""
        ctx = self._enter(ask)
        rules.check(ask.creation)
        self._wanted_names.setdefault(ctx.workspace.id, set()).add(ask.creation.name)
        return _Ready(number, ask, ctx, self._cluster(ctx, ask.creation.cluster))

    def let_in_again(self) -> None:
        """Forget who was let in: what took that away may have been waited for by now."""
        self._entered.clear()

    def under_lock(self, one: _Ready) -> _Ready:
        """Let the caller in by what holds now that nothing can change it any more."""
        return replace(one, ctx=self._enter(one.ask))

    def _enter(self, ask: CreateAsk) -> Context:
        known = (ask.caller.token, ask.rule, ask.place)
        if known not in self._entered:
            self._entered[known] = enter(self.tx, ask.caller, ask.rule, ask.place)
        ctx = self._entered[known]
        return replace(ctx, actor=replace(ctx.actor, address=ask.caller.address, request_id=ask.caller.request_id))

    def _cluster(self, ctx: Context, slug: str | None) -> Row:
        known = (ctx.workspace.id, slug)
        if known not in self._clusters:
            self._clusters[known] = cluster_of(ctx, slug)
        return self._clusters[known]

    def claim_name(self, ctx: Context, name: str) -> None:
        """Refuse a name that is taken, by what lives or by an earlier ask of this batch."""
        taken = self._taken.get(ctx.workspace.id)
        if taken is None:
            wanted = self._wanted_names[ctx.workspace.id]
            kind = Kind.COMPUTE_CLUSTER.value
            taken = workloads.live_names(self.tx, ctx.scope, ctx.workspace.id, kind, wanted)
            self._taken[ctx.workspace.id] = taken
        if name in taken:
            raise Refusal(
                "NAME_TAKEN", f"There is a compute cluster '{name}' in this workspace already. Choose another name."
            )

    def name_is_taken(self, ctx: Context, name: str) -> None:
        self._taken[ctx.workspace.id].add(name)

    def keys(self, ctx: Context, named: Sequence[str] | None) -> list[str]:
        """Return the ids of the caller's keys to attach: those named, or all of them."""
        if named is not None:
            return own_keys(ctx, named)
        if ctx.user.id not in self._keys:
            rows = ssh_keys.listed(self.tx, ctx.user.id, None, rules.MAX_KEYS)
            self._keys[ctx.user.id] = [row["id"] for row in rows]
        return self._keys[ctx.user.id]


def cluster_of(ctx: Context, slug: str | None) -> Row:
    """Return the tenancy asked for, or the only one the workspace may use.

    Errors: `NOT_FOUND`, `NO_ACCESS`, `CLUSTER_REQUIRED`.
    """
    if slug is not None:
        row = clusters.tenancy_by_slug(ctx.tx, ctx.scope, slug)
        if row is None:
            raise not_found()
        return row
    found = access.listed(ctx.tx, ctx.scope, ctx.workspace.id, None, 2)
    if not found:
        raise no_access(ctx)
    if len(found) > 1:
        raise Refusal(
            "CLUSTER_REQUIRED", "This workspace may use several clusters: name one in 'cluster'.", field="cluster"
        )
    return found[0]


def no_access(ctx: Context) -> Refusal:
    return Refusal(
        "NO_ACCESS",
        f"Workspace '{ctx.workspace.slug}' has no access to this cluster. Ask {_whom(ctx)} for it.",
    )


def _whom(ctx: Context) -> str:
    """Return whom to ask for more, in words."""
    return contact(ctx) or "an admin of the organisation"


def selected(ctx: Context, tenancy: Tenancy, creation: Creation, grant: Grant) -> PlacementAsk:
    """Return the ask with what its workspace may use.

    A machine or pool outside of that is refused as one that does not exist.
    Errors: `NODE_NOT_FOUND`, `NO_ACCESS`.
    """
    chosen = (creation.machine, creation.pool, creation.gpu_model)
    want = PlacementAsk(
        creation.ask,
        grant.pools,
        *chosen,
        drives=bool(creation.drives),
        workspace=ctx.workspace.id,
        now=ctx.now,
        sure_end=sure_end(must_end_by(ctx.now, creation.time_limit_seconds)),
    )
    if creation.pool is not None and not want.sees(creation.pool):
        raise Refusal(
            "NO_ACCESS",
            f"This workspace may not use a pool {shown(creation.pool)}. Ask an admin for it, or leave 'pool' out.",
            field="pool",
        )
    if creation.machine is not None:
        machine = tenancy.fleet.machines.get(creation.machine)
        if machine is None or not want.sees(machine.facts.pool):
            raise Refusal(
                "NODE_NOT_FOUND", f"This workspace may use no machine {shown(creation.machine)}.", field="machine"
            )
    return want


def create_many(tx: Tx, fleets: Fleets, asks: Sequence[CreateAsk]) -> list[idempotency.Stored | Refusal]:
    """Create what can be created; return for each ask its answer or its refusal.

    Raises when the transaction must not commit; `fleets` is then to be forgotten. No two asks
    may share an `Idempotency-Key`.
    """
    batch = _Batch(tx)
    answers: dict[int, idempotency.Stored | Refusal] = {}
    ready, made = [], []
    for number, ask in enumerate(asks):
        try:
            ready.append(batch.ready(number, ask))
        except Refusal as refusal:
            answers[number] = refusal
    order = sorted({one.tenancy for one in ready}, key=lambda key: fleet.lock_order(key[1], key[0]))
    tenancies = {(c, org): fleets.locked(tx, Scope(org), c) for c, org in order}
    batch.let_in_again()
    for waiting in ready:
        try:
            one = batch.under_lock(waiting)
            stored = idempotency.recall(one.ctx, one.ask.key) if one.ask.key else None
            if stored is not None:
                answers[one.number] = stored
            else:
                made.append(_make(batch, tenancies[one.tenancy], one))
        except Refusal as refusal:
            answers[waiting.number] = refusal
    _write(tx, tenancies, made)
    scopes = {tenancy.scope for tenancy in tenancies.values()}
    traits = workloads.machine_traits(tx, scopes, [new.plan.machine_id for new in made if new.plan is not None])
    for new in made:
        answers[new.one.number] = _answer(new, traits)
    return [answers[number] for number in range(len(asks))]


def _make(batch: _Batch, tenancy: Tenancy, one: _Ready) -> _Made:
    """Judge one ask; when nothing refuses it, count it in what is remembered, and return its rows."""
    ctx, creation = one.ctx, one.ask.creation
    grant = tenancy.grant(batch.tx, ctx.workspace.id)
    if grant is None:
        raise no_access(ctx)
    batch.claim_name(ctx, creation.name)
    keys = batch.keys(ctx, creation.ssh_keys)
    want = selected(ctx, tenancy, creation, grant)
    plan, reason = _find(batch.tx, tenancy, one, want)
    batch.name_is_taken(ctx, creation.name)
    queue_no = tenancy.last_queue_no + 1 if plan is None else None
    workload = workload_row(ctx, creation, tenancy.cluster_id, queue_no, reason)
    if plan is None:
        tenancy.last_queue_no += 1
        waiting = Waiting(workload["id"], ctx.workspace.id, creation.name, want, creation.time_limit_seconds, reason)
        tenancy.wait(waiting)
        return _Made(one, workload, keys=keys)
    tenancy.take(want, plan)
    return _Made(one, workload, plan, allocation_row(ctx.tx, workload, plan), keys)


def _find(tx: Tx, tenancy: Tenancy, one: _Ready, want: PlacementAsk) -> tuple[Plan | None, str]:
    """Return where it goes, or None and why it waits. Errors: `QUOTA_EXCEEDED`, `NO_CAPACITY`, `QUEUE_FULL`."""
    workspace, creation = one.ctx.workspace, one.ask.creation
    (within, over), ahead = tenancy.judged(tx, want), tenancy.ahead(tx)
    never = over is not None and over.never
    if over is None:
        plan = try_place(tenancy.fleet, within, ahead)
        if plan is not None:
            return plan, ""
        over = tenancy.kept_out(tx, want, ahead) if within != want else None
    if over is not None and (never or not creation.wait):
        raise quotas.exceeded(one.where, over, _whom(one.ctx))
    if not creation.wait:
        raise _no_capacity(one, tenancy, within, ahead)
    quotas.check_waiting(one.where, len(tenancy.waiting_of(workspace.id)))
    return None, quotas.explain(over) if over is not None else why_it_waits(tenancy.fleet, within, ahead)


def _no_capacity(one: _Ready, tenancy: Tenancy, want: PlacementAsk, ahead: Ahead) -> Refusal:
    machines = tenancy.fleet.count(want)
    named = list(islice(refusals(tenancy.fleet, want, ahead), REASONS_ANSWERED))
    left_out = {"machines_left_out": machines - len(named)} if machines > len(named) else {}
    return Refusal(
        "NO_CAPACITY",
        f"No machine can take this now: {in_words(named, machines)}. "
        f"Ask for less, queue for it ('wait': true; on the command line --queue), or ask {_whom(one.ctx)} for more.",
        machines=[{"name": machine, "reason": reason} for machine, reason in named],
        **left_out,
    )


def _write(tx: Tx, tenancies: Mapping[tuple[str, str], Tenancy], made: Sequence[_Made]) -> None:
    """Write everything; raises when one of the database's last guards says no."""
    workloads.insert_many(tx, [new.workload for new in made])
    placed = [(new, new.held, new.plan) for new in made if new.held is not None and new.plan is not None]
    check_not_fenced(tx, [plan for _, _, plan in placed])
    holds = [hold for _, held, plan in placed for hold in hold_rows(held, plan)]
    allocations.insert_many(tx, [held for _, held, _ in placed], holds)
    workloads.attach(tx, [(new.one.ctx.scope, new.workload["id"], key) for new in made for key in new.keys])
    for where, tenancy in tenancies.items():
        here = [new for new in made if new.one.tenancy == where]
        if here:
            machines = sorted({new.plan.machine_id for new in here if new.plan is not None})
            tenancy.version = fleet.touch(tx, tenancy.scope, tenancy.cluster_id, machines)
            for id in machines:
                tx.wake(Wake.DESIRED, id)
    for new in made:
        _record(new)


def _record(new: _Made) -> None:
    ctx, creation, plan = new.one.ctx, new.one.ask.creation, new.plan
    subject = Subject(ctx.org.id, new.workload["cluster_id"], ctx.workspace.id, None, new.workload["id"])
    ctx.record("workload.created", subject, name=creation.name, gpus=creation.gpus, image=new.workload["image"])
    if plan is not None:
        record_placed(ctx.tx, subject, creation.name, plan, ctx.actor)


def record_placed(tx: Tx, subject: Subject, name: str, plan: Plan, by: Actor) -> None:
    data = {"name": name, "machine": plan.machine, "gpus": len(plan.gpus)}
    tx.record(Entry("workload.placed", replace(subject, machine=plan.machine_id), data), by)


def _answer(new: _Made, traits: Mapping[str, Row]) -> idempotency.Stored:
    ctx, ask = new.one.ctx, new.one.ask
    machine = None
    if new.plan is not None:
        machine = MachineTraits.of(new.plan.machine_id, new.plan.machine, traits.get(new.plan.machine_id))
    gpus = [{"uuid": gpu.uuid, "model": gpu.model} for gpu in (new.plan.gpus if new.plan else ())]
    workload = {**new.workload, "maker": ctx.user.login}
    around = Around(new.one.cluster["slug"], machine, gpus, bool(new.keys))
    answer = ask.render(ctx, built(workload, new.held, around))
    if ask.key is not None:
        idempotency.remember(ctx, ask.key, ask.status, answer)
    return idempotency.Stored(ask.status, answer)
