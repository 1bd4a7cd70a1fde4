"""Which machine takes an ask, and why each other one does not (spec 30, "Placement"; design decisions 5 and 6).

Best fit: of the machines that can take it, the one with the fewest free GPUs (so whole machines stay
whole), then the least free vCPU, then RAM, then the first by name. GPUs are taken in PCI bus order
and are of one model. The same fleet and ask give the same answer.

First come, first served: a later ask takes no machine that an earlier one which still waits could
ever use (`Ahead`). That is stricter than backfill by time limits, and delays nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from corral.domain.fleet import ANY, Ahead, Fleet, Machine, PlacementAsk, Plan
from corral.domain.resources import MIB_PER_GIB, Ask

_NOBODY = Ahead()
REASONS_KEPT = 20
"""Machines named in the reason why something waits; `explain` names all of them."""


def try_place(fleet: Fleet, want: PlacementAsk, ahead: Ahead = _NOBODY) -> Plan | None:
    """Choose a machine and GPUs for the ask; nothing is taken yet (`Fleet.take`). None: no machine takes it."""
    if want.machine is not None:
        chosen = _named(fleet, want, want.machine, ahead)
    else:
        found = fleet.find(want, ahead)
        chosen = found[3:] if found is not None else None
    if chosen is None:
        return None
    name, model = chosen
    machine = fleet.machines[name]
    gpus = tuple(machine.by_model[model][: want.ask.gpus]) if want.ask.gpus else ()
    return Plan(machine.facts.id, name, gpus, fleet.need(want.ask, machine.kind_no))


def _named(fleet: Fleet, want: PlacementAsk, name: str, ahead: Ahead) -> tuple[str, str] | None:
    """Return (machine, GPU model) when the machine that was asked for by name takes it."""
    machine = fleet.machines.get(name)
    if machine is None or not want.selects(name, machine.facts.pool) or why_not(fleet, machine, want, ahead):
        return None
    fitting = [
        (len(free), model)
        for model, free in machine.by_model.items()
        if want.gpu_model in (None, model) and len(free) >= want.ask.gpus
    ]
    return name, min(fitting)[1] if want.ask.gpus else ANY


def refusals(fleet: Fleet, want: PlacementAsk, ahead: Ahead = _NOBODY) -> Iterator[tuple[str, str]]:
    """Yield (machine, reason) for each machine that was asked for, by name. Others' machines are not named."""
    for name in fleet.names():
        machine = fleet.machines[name]
        if want.selects(name, machine.facts.pool):
            yield name, why_not(fleet, machine, want, ahead)


def why_it_waits(fleet: Fleet, want: PlacementAsk, ahead: Ahead = _NOBODY) -> str:
    """Return in words why no machine takes it; as many are judged as are named."""
    named = list(islice(refusals(fleet, want, ahead), REASONS_KEPT))
    return in_words(named, fleet.count(want))


def in_words(named: Sequence[tuple[str, str]], machines: int) -> str:
    """`named`: what those named first said, of all the `machines` that were asked for."""
    if not named:
        return "no machine that this workspace may use is what was asked for"
    kept = named[:REASONS_KEPT]
    more = f"; and {machines - len(kept)} more machines" if machines > len(kept) else ""
    return "; ".join(f"{machine}: {reason}" for machine, reason in kept) + more


@dataclass(frozen=True)
class Answer:
    """What one machine says to a hypothetical ask. `reason` is "" where it would take it."""

    machine: str
    reason: str


def explain(fleet: Fleet, want: PlacementAsk, ahead: Ahead = _NOBODY) -> list[Answer]:
    """Return every machine the workspace may use, by name, and why it would not take the ask."""
    answers = []
    for name in fleet.names():
        machine = fleet.machines[name]
        if not want.sees(machine.facts.pool):
            continue
        if want.selects(name, machine.facts.pool):
            answers.append(Answer(name, why_not(fleet, machine, want, ahead)))
        elif want.pool not in (None, machine.facts.pool):
            answers.append(Answer(name, f"in pool '{machine.facts.pool}', '{want.pool}' asked"))
        else:
            answers.append(Answer(name, f"'{want.machine}' asked"))
    return answers


def why_not(fleet: Fleet, machine: Machine, want: PlacementAsk, ahead: Ahead) -> str:
    """Return why the machine does not take the ask now ("" = it does), in words with numbers."""
    facts, ask = machine.facts, want.ask
    if facts.closed:
        return facts.closed
    if want.gpu_model is not None and want.gpu_model not in facts.models:
        has = ", ".join(sorted(facts.models)) or "no GPU"
        return f"has {has}, {want.gpu_model} asked"
    lacking = _lacks_gpus(machine, want)
    if lacking:
        return lacking
    need = fleet.need(ask, machine.kind_no)
    share = "" if None not in (ask.vcpu, ask.ram_mib, ask.storage_mib) else _share(ask)
    if machine.vcpu < need.vcpu:
        said = share if ask.vcpu is None else ""
        return f"{max(0, machine.vcpu)} of {facts.total.vcpu} vCPU free, {need.vcpu} asked{said}"
    if machine.ram < need.ram_mib:
        said = share if ask.ram_mib is None else ""
        return f"{_gib(machine.ram)} of {_gib(facts.total.ram_mib)} GiB RAM free, {_gib(need.ram_mib)} asked{said}"
    if machine.storage < need.storage_mib:
        said = share if ask.storage_mib is None else ""
        free, total = _gib(machine.storage), _gib(facts.total.storage_mib)
        return f"{free} of {total} GiB storage free, {_gib(need.storage_mib)} asked{said}"
    if facts.name in ahead.machines or (ahead and ahead.waits_for(machine.kind)):
        return "kept for work that has waited longer"
    return ""


def _lacks_gpus(machine: Machine, want: PlacementAsk) -> str:
    asked, facts = want.ask.gpus, machine.facts
    if asked == 0:
        return ""
    free = max((len(gpus) for model, gpus in machine.by_model.items() if want.gpu_model in (None, model)), default=0)
    if free >= asked:
        return ""
    total = facts.models[want.gpu_model] if want.gpu_model else sum(facts.models.values())
    if total == 0:
        return f"has no GPU, {asked} asked"
    unusable = f" ({facts.unusable} faulty or busy)" if facts.unusable else ""
    several = " of one model" if want.gpu_model is None and len(facts.models) > 1 else ""
    return f"{free} of {total} {want.gpu_model or 'GPUs'} free{unusable}, {asked} asked{several}"


def _share(ask: Ask) -> str:
    return f" (the fair share of {ask.gpus} GPUs; ask for less)" if ask.gpus else ""


def _gib(mib: int) -> str:
    """A machine that has become smaller than what it holds has nothing free."""
    return f"{max(0, mib) / MIB_PER_GIB:.1f}".removesuffix(".0")
