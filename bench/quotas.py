"""Placements a second where quotas are judged: workspaces that each have one and work that waits, and a fleet in which
no two machines are of one size.

One long transaction and many of a batch each are told apart: what is judged once a transaction shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from bench.figures import say
from bench.ground import temporary
from bench.placement import GPUS, TOTAL, machine, placed
from corral.controllers.placement import MAX_BATCH
from corral.domain.asks import MachineFacts, PlacementAsk
from corral.domain.fleet import Fleet
from corral.domain.placement import try_place
from corral.domain.quotas import Quota
from corral.domain.resources import Ask, Resources
from corral.store.engine import Database
from corral.store.migrate import upgrade
from corral.store.transaction import Scope
from corral.usecases.fleets import Grant, Tenancy, Waiting

MACHINES = 1_000
WORKSPACES = 10
WAITING = 150
"""Of each workspace."""
BATCHES = 12
FULL = "full"
"""The pool that everything waits for."""
MUCH = 1_000_000_000
QUOTAS = {
    "none": Quota(),
    "gpus": Quota(gpus=MUCH),
    "vcpu": Quota(vcpu=MUCH),
    "gpu_hours_month": Quota(gpu_hours_month=MUCH),
}


def _sized(number: int) -> MachineFacts:
    size = replace(TOTAL, ram_mib=TOTAL.ram_mib + number)
    return replace(machine(number), total=size, free=size)


def _full(facts: MachineFacts) -> MachineFacts:
    return replace(facts, pool=FULL, gpus=(), free=Resources())


def _ask(workspace: str, pool: str, gpus: int = 1) -> PlacementAsk:
    return PlacementAsk(Ask(gpus), pool=pool, workspace=workspace)


def tenancy(quota: Quota, waiting: int) -> Tenancy:
    """Return machines of as many sizes, half of them full, and workspaces of which each waits for those."""
    fleet = Fleet.of(_full(_sized(n)) if n % 2 else _sized(n) for n in range(MACHINES))
    grants: Mapping[str, Grant] = {f"workspace-{n}": Grant(None, quota) for n in range(WORKSPACES)}
    queue = [
        Waiting(f"{workspace}/{n}", workspace, f"{n}", _ask(workspace, FULL, 1 + n % GPUS), 3600, "")
        for n in range(waiting)
        for workspace in grants
    ]
    return Tenancy("cluster", Scope("org"), fleet=fleet, grants=dict(grants), queue=queue)


def rate(db: Database, here: Tenancy) -> float:
    """Place batches of one GPU each; return placements a second."""
    began = perf_counter()
    for _ in range(BATCHES):
        with db.read() as tx:
            here.begin()
            for number in range(MAX_BATCH):
                want = replace(_ask(f"workspace-{number % WORKSPACES}", "h100"), now=tx.now, sure_end=tx.now)
                within, over = here.judged(tx, want)
                if over is not None:
                    raise RuntimeError("the quota is too small for the bench")
                here.take(want, placed(try_place(here.fleet, within, here.ahead(tx))))
    return BATCHES * MAX_BATCH / (perf_counter() - began)


@contextmanager
def _database() -> Iterator[Database]:
    with temporary() as folder:
        db = Database(f"sqlite:///{folder}/bench.db")
        try:
            upgrade(db)
            yield db
        finally:
            db.close()


def measure() -> list[dict[str, object]]:
    say("quotas: judged with a queue, in memory")
    with _database() as db:
        return [
            {
                "quota": name,
                "machines_of_as_many_sizes": MACHINES,
                "workspaces": WORKSPACES,
                "waiting": WORKSPACES * waiting,
                "batch": MAX_BATCH,
                "placements_per_second": round(rate(db, tenancy(quota, waiting))),
            }
            for name, quota in QUOTAS.items()
            for waiting in (0, WAITING)
        ]
