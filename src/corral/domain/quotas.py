"""A workspace's quota on a cluster, in every dimension: never exceeded (spec 00; spec 20, "Create"; spec 60, line 2).

GPUs in total and by model, vCPU, RAM and storage of live allocations, and GPU-hours a month (`domain/gpu_hours.py`).
First come, first served holds for the quota too: what a workspace asked for earlier and still waits for counts
before what it asks for later, in each dimension. And how many may wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from corral.domain import gpu_hours
from corral.domain.asks import PlacementAsk
from corral.domain.errors import Refusal
from corral.domain.gpu_hours import Excess, Ledger
from corral.domain.ids import shown
from corral.domain.resources import MIB_PER_GIB, Resources, on_machine
from corral.domain.shelves import NEVER

MAX_WAITING = 200
"""Workloads of a workspace that wait for one cluster: work without GPUs costs no quota, waiting costs everybody."""
QUOTA_MAX = 1_000_000_000
MODELS_MAX = 50

Dimension = tuple[str, str]
"""What is counted: the quota's name, and the GPU model where it is one of a model."""
GPUS, VCPU, RAM, STORAGE = ("gpus", ""), ("vcpu", ""), ("ram_gib", ""), ("storage_gib", "")
MODELS = "gpu_models"
Amounts = Counter[Dimension]
"""By dimension; RAM and storage in MiB."""


@dataclass(frozen=True)
class Quota:
    """None: no limit. A GPU model that is not named has no limit of its own."""

    gpus: int | None = None
    gpu_models: Mapping[str, int] = field(default_factory=dict)
    vcpu: int | None = None
    ram_gib: int | None = None
    storage_gib: int | None = None
    gpu_hours_month: int | None = None

    @cached_property
    def limits(self) -> Sequence[tuple[Dimension, int]]:
        """What is limited but GPU-hours, in the order in which it is judged; RAM and storage in MiB."""
        every = (
            (GPUS, self.gpus, 1),
            *(((MODELS, model), limit, 1) for model, limit in sorted(self.gpu_models.items())),
            (VCPU, self.vcpu, 1),
            (RAM, self.ram_gib, MIB_PER_GIB),
            (STORAGE, self.storage_gib, MIB_PER_GIB),
        )
        return [(dimension, limit * unit) for dimension, limit, unit in every if limit is not None]

    @property
    def limits_shares(self) -> bool:
        """Whether it matters how much else a machine's fair share for some GPUs is."""
        return not (self.vcpu is None and self.ram_gib is None and self.storage_gib is None)


NO_LIMIT = Quota()


def checked(quota: Quota) -> Quota:
    """Return a quota that somebody sent. Errors: `INVALID_REQUEST` naming the field."""
    if len(quota.gpu_models) > MODELS_MAX:
        raise _invalid("gpu_models", f"name at most {MODELS_MAX} models")
    for model in quota.gpu_models:
        if not 1 <= len(model) <= 100 or not model.isprintable():
            raise _invalid("gpu_models", f"{shown(model)} is no GPU model: write one as machines report it")
    given = [(name, getattr(quota, name)) for name in ("gpus", "vcpu", "ram_gib", "storage_gib", "gpu_hours_month")]
    for name, limit in (*given, *((MODELS, limit) for limit in quota.gpu_models.values())):
        if limit is not None and not 0 <= limit <= QUOTA_MAX:
            raise _invalid(name, f"use 0 to {QUOTA_MAX}, or null for no limit")
    return quota


def _invalid(name: str, what: str) -> Refusal:
    return Refusal("INVALID_REQUEST", f"quota.{name}: {what}.", field=f"quota.{name}")


def amounts(gpus: int, model: str, other: Resources) -> Amounts:
    """Return what an allocation counts. `other`: its vCPU, RAM and storage."""
    counted = Counter({VCPU: other.vcpu, RAM: other.ram_mib, STORAGE: other.storage_mib})
    if gpus:
        counted[GPUS] = counted[MODELS, model] = gpus
    return counted


@dataclass(frozen=True)
class Use:
    """How a quota is used when it does not allow what is asked. RAM and storage in MiB.

    `waiting`: asked for by the workspace's own workloads that wait longer. `never`: it would not fit alone.
    """

    dimension: Dimension
    limit: int
    in_use: int
    waiting: int
    asked: int

    @property
    def over_by(self) -> int:
        return self.in_use + self.waiting + self.asked - self.limit

    @property
    def never(self) -> bool:
        return self.asked > self.limit


Over = Use | Excess


@dataclass
class Before:
    """What a workspace's own workloads ask for that wait longer."""

    now: datetime
    amounts: Amounts = field(default_factory=Counter)
    hours: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.hours = Ledger(self.now)

    def add(self, quota: Quota, want: PlacementAsk, least: Resources) -> None:
        """Count an ask. One that names no GPU model may get any: it counts before each of those that could suffice."""
        self.amounts += known(want, least)
        if want.gpu_model is None and want.ask.gpus:
            for model, limit in quota.gpu_models.items():
                self.amounts[MODELS, model] += want.ask.gpus if want.ask.gpus <= limit else 0
        if quota.gpu_hours_month is not None and want.ask.gpus:
            self.hours.add(want.ask.gpus, self.now, want.sure_end)


@dataclass(frozen=True)
class Standing:
    """How a workspace stands with its quota when one of its asks is judged."""

    quota: Quota
    live: Amounts
    before: Before
    hours: Ledger

    def over(self, asked: Amounts) -> Use | None:
        """Return the first quota that does not allow this much more. What is not asked for exceeds nothing."""
        for dimension, limit in self.quota.limits:
            use = Use(dimension, limit, self.live[dimension], self.before.amounts[dimension], asked[dimension])
            if use.asked and use.over_by > 0:
                return use
        return None

    def over_hours(self, want: PlacementAsk) -> Excess | None:
        limit = self.quota.gpu_hours_month
        if limit is None:
            return None
        return gpu_hours.excess(limit, self.hours, self.before.hours, want.ask.gpus, want.sure_end)

    def within(self, want: PlacementAsk) -> PlacementAsk:
        """Return the ask for what the quota leaves: of the GPU models, and of what a fair share may be."""
        left = {d: limit - self.live[d] - self.before.amounts[d] for d, limit in self.quota.limits}
        spent = frozenset(model for name, model in left if name == MODELS and left[name, model] < want.ask.gpus)
        if not self.quota.limits_shares:
            return replace(want, spent_models=spent) if spent else want
        room = Resources(0, *(left.get(dimension, NEVER) for dimension in (VCPU, RAM, STORAGE)))
        return replace(want, spent_models=spent, room=room)


def known(want: PlacementAsk, least: Resources) -> Amounts:
    """Return what an ask will count at least. `least`: what it takes where its fair share is the smallest."""
    ask = want.ask
    share = least if ask.gpus else on_machine(ask, Resources())
    other = Resources(
        0,
        share.vcpu if ask.vcpu is None else ask.vcpu,
        share.ram_mib if ask.ram_mib is None else ask.ram_mib,
        share.storage_mib if ask.storage_mib is None else ask.storage_mib,
    )
    counted = amounts(ask.gpus, want.gpu_model or "", other)
    if want.gpu_model is None:
        del counted[MODELS, ""]
    return counted


# ---- in words

_UNITS = {"gpus": "GPUs", "vcpu": "vCPU", "ram_gib": "GiB RAM", "storage_gib": "GiB storage"}
SHORTEST = 60
"""The shortest time limit there is, in seconds."""


def explain(over: Over) -> str:
    """Return which quota does not allow it, and by how much, in words."""
    in_use, asked = _shown(over, over.in_use), _shown(over, over.asked)
    waiting = f", {_shown(over, over.waiting)} more are asked for by what waits before this" if over.waiting else ""
    much = f"{asked} asked is {_shown(over, over.over_by)} too many"
    if isinstance(over, Use):
        name, model = over.dimension
        unit = f"{model} GPUs" if name == MODELS else _UNITS[name]
        return f"quota: {in_use} of {_shown(over, over.limit)} {unit} are in use{waiting}; {much}"
    when = f"of {gpu_hours.named(over.month)}" if over.month is not None else "of a later month"
    fits = (
        f"a time limit of up to {_to_read(over.fits)} fits now" if over.fits >= SHORTEST else "no time limit fits now"
    )
    kept = f"{in_use} of {_shown(over, over.limit)} GPU-hours {when} are used, or kept for what runs"
    return f"quota: {kept}{waiting}; {much} ({fits})"


def _to_read(seconds: int) -> str:
    """Return a time of a minute or more, rounded down: what is said to fit must fit."""
    hours, minutes = divmod(seconds // 60, 60)
    return " ".join(f"{number} {unit}" for number, unit in ((hours, "h"), (minutes, "min")) if number)


def _shown(over: Over, amount: int) -> int | float:
    """Return an amount in its quota's unit."""
    if isinstance(over, Excess):
        return in_hours(amount)
    return in_gib(amount) if over.dimension in (RAM, STORAGE) else amount


def in_gib(mib: int) -> int | float:
    gib = round(mib / MIB_PER_GIB, 3)
    return int(gib) if gib.is_integer() else gib


def in_hours(gpu_time: int) -> int | float:
    hours = round(gpu_time / gpu_hours.HOUR, 2)
    return int(hours) if hours.is_integer() else hours


def exceeded(where: str, over: Over, whom: str) -> Refusal:
    """`where` names workspace and cluster, `whom` who may give more."""
    details: dict[str, object] = {
        name: _shown(over, getattr(over, name)) for name in ("limit", "in_use", "waiting", "asked", "over_by")
    }
    if isinstance(over, Excess):
        details["month"] = gpu_hours.named(over.month) if over.month is not None else None
        details["time_limit_that_fits"] = over.fits if over.fits >= SHORTEST else None
    elif over.dimension[1]:
        details["gpu_model"] = over.dimension[1]
    return Refusal(
        "QUOTA_EXCEEDED",
        f"{where}: {explain(over)}. Ask for less, terminate something, or ask {whom} for more.",
        quota="gpu_hours_month" if isinstance(over, Excess) else over.dimension[0],
        **details,
    )


def check_waiting(where: str, waiting: int) -> None:
    """Refuse one more that would wait. Errors: `QUEUE_FULL`."""
    if waiting >= MAX_WAITING:
        raise Refusal(
            "QUEUE_FULL",
            f"{where}: {waiting} workloads wait already, which is the most. Terminate one, or ask again when some run.",
            waiting=waiting,
        )


# ---- what machines' lists say


@dataclass(frozen=True)
class Reached:
    """What a workspace's quota leaves nothing of."""

    everything: bool = False
    """vCPU, RAM or storage: not even work without GPUs."""
    gpus: bool = False
    models: frozenset[str] = frozenset()

    def on(self, gpus: int, models: Collection[str]) -> bool:
        """Whether because of it nothing can be created on a machine with so many GPUs, of these models."""
        return self.everything or (gpus > 0 and (self.gpus or (bool(models) and self.models.issuperset(models))))


def reached(quota: Quota, live: Amounts, hours: Ledger) -> Reached:
    full = {dimension for dimension, limit in quota.limits if live[dimension] >= limit}
    limit = quota.gpu_hours_month
    spent = limit is not None and hours.of(gpu_hours.month_of(hours.now)) >= limit * gpu_hours.HOUR
    models = frozenset(model for name, model in full if name == MODELS)
    return Reached(not full.isdisjoint((VCPU, RAM, STORAGE)), GPUS in full or spent, models)
