"""Which machine takes an ask, and why each other one does not (spec 30, "Placement"; design decisions 5 and 6).

Best fit: of the machines that can take it, the one with the fewest free GPUs (so whole machines stay
whole), then the least free vCPU, then RAM, then the one that a reservation closes soonest (work that is
over by then leaves the others to work that is not), then the first by name. GPUs are taken in PCI bus order
and are of one model. The same fleet and ask give the same answer.

A reservation closes a machine to what is not sure to end before it, but for its own workspaces. What the
workspace's quota leaves is judged here too where it depends on the machine: GPU models, and a fair share.

First come, first served: a later ask takes no machine that an earlier one which still waits could
ever use (`Ahead`). That is stricter than backfill by time limits, and delays nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from corral.domain.asks import Ahead, PlacementAsk, Plan
from corral.domain.fleet import ANY, Fleet, Machine
from corral.domain.reservations import refused_by
from corral.domain.resources import MIB_PER_GIB, Ask, Resources
from corral.domain.shelves import NEVER

_NOBODY = Ahead()
_NO_LIMIT = Resources(0, NEVER, NEVER, NEVER)
NO_DATA_LOCATION = "no data location"
REASONS_KEPT = 20
"""Machines named in the reason why something waits; `explain` names all of them."""


def try_place(fleet: Fleet, want: PlacementAsk, ahead: Ahead = _NOBODY) -> Plan | None:
    """Choose a machine and GPUs for the ask; nothing is taken yet (`Fleet.take`). None: no machine takes it."""
    if want.machine is not None:
        chosen = _named(fleet, want, want.machine, ahead)
    else:
        found = fleet.find(want, ahead)
        chosen = found[4:] if found is not None else None
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
        if want.takes(model) and len(free) >= want.ask.gpus
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
    facts = machine.facts
    if facts.closed:
        return facts.closed
    reserved = refused_by(facts.windows, want.workspace, want.now, want.sure_end)
    if reserved:
        return reserved
    if want.drives and not facts.data:
        return NO_DATA_LOCATION
    if want.gpu_model is not None and want.gpu_model not in facts.models:
        has = ", ".join(sorted(facts.models)) or "no GPU"
        return f"has {has}, {want.gpu_model} asked"
    lacking = _lacks_gpus(machine, want) or _lacks_more(fleet, machine, want)
    if lacking:
        return lacking
    if ahead and (facts.name in ahead.kept(fleet.machines) or ahead.waits_for(machine.kind)):
        return "kept for work that has waited longer"
    return ""


def _lacks_gpus(machine: Machine, want: PlacementAsk) -> str:
    asked, facts = want.ask.gpus, machine.facts
    if asked == 0:
        return ""
    asked_of = [model for model in facts.models if want.gpu_model in (None, model)]
    free = {model: len(machine.by_model[model]) for model in asked_of}
    if any(free[model] >= asked for model in asked_of if want.takes(model)):
        return ""
    spent = [model for model in asked_of if free[model] >= asked]
    if spent:
        return f"the workspace's quota leaves too few {', '.join(sorted(spent))}"
    total = facts.models[want.gpu_model] if want.gpu_model else sum(facts.models.values())
    if total == 0:
        return f"has no GPU, {asked} asked"
    unusable = f" ({facts.unusable} faulty or busy)" if facts.unusable else ""
    several = " of one model" if want.gpu_model is None and len(facts.models) > 1 else ""
    most = max(free.values(), default=0)
    return f"{most} of {total} {want.gpu_model or 'GPUs'} free{unusable}, {asked} asked{several}"


def _lacks_more(fleet: Fleet, machine: Machine, want: PlacementAsk) -> str:
    """Say of which of vCPU, RAM and storage too little is free there, or left by the quota."""
    ask, total, need = want.ask, machine.facts.total, fleet.need(want.ask, machine.kind_no)
    left = want.room or _NO_LIMIT
    for name, asked, needed, free, whole, most in (
        ("vCPU", ask.vcpu, need.vcpu, machine.vcpu, total.vcpu, left.vcpu),
        ("GiB RAM", ask.ram_mib, need.ram_mib, machine.ram, total.ram_mib, left.ram_mib),
        ("GiB storage", ask.storage_mib, need.storage_mib, machine.storage, total.storage_mib, left.storage_mib),
    ):
        amount = str if name == "vCPU" else _gib
        said = _share(ask) if asked is None else ""
        if free < needed:
            return f"{amount(max(0, free))} of {amount(whole)} {name} free, {amount(needed)} asked{said}"
        if most < needed:
            return f"the workspace's quota leaves {amount(max(0, most))} {name}, {amount(needed)} asked{said}"
    return ""


def _share(ask: Ask) -> str:
    return f" (the fair share of {ask.gpus} GPUs; ask for less)" if ask.gpus else ""


def _gib(mib: int) -> str:
    """A machine that has become smaller than what it holds has nothing free."""
    return f"{max(0, mib) / MIB_PER_GIB:.1f}".removesuffix(".0")
