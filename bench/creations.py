"""Durable creations a second through the API: every answered one is on disk and survives a power cut.

Beside Slurm on such a box (5,000 jobs on 1,000 nodes), which saves its state up to 5 s later.
"""

from __future__ import annotations

import json
import time

from bench.figures import Result, say, spending
from bench.ground import WORK, Site1k
from bench.load import Requests, send

SLURM_ONE_ARRAY = 706
SLURM_ONE_BY_ONE = (126, 145)
TARGET = 800
CLIENTS = 32
ROUNDS = 3
SETTLE_WITHIN_S = 60.0
BODY = json.dumps({"name": "job-@", "gpus": 1, "vcpu": 1, "ram_gib": 1, "storage_gib": 1})


def measure(site: Site1k, count: int) -> Result:
    """Create `count` with machines that take them at once, as many with machines gone a moment ago, and some singly.

    The best of the rounds is told beside the median: a shared machine only ever makes it slower.
    """
    connected = _many(site, count, "machines connected")
    _settled(site)
    one_by_one = _one_by_one(site, count)
    _settled(site)
    site.machines.__exit__()  # nothing is Down before 60 s have passed
    alone = _many(site, count, "machines not connected")
    best = max(alone["per_second"], connected["per_second"])
    return {
        "database": site.database,
        "machines": site.count,
        "machines_connected": connected,
        "machines_not_connected": alone,
        "one_client": one_by_one,
        "target_per_second": TARGET,
        "against_slurm_one_array": round(best / SLURM_ONE_ARRAY, 2),
        "against_slurm_one_by_one": round(one_by_one["per_second"] / max(SLURM_ONE_BY_ONE), 2),
    }


def _many(site: Site1k, count: int, what: str) -> Result:
    say(f"creations: {count} by {CLIENTS} clients, {site.database}, {what}")
    rounds = sorted((_round(site, count // ROUNDS, CLIENTS) for _ in range(ROUNDS)), key=_rate)
    return {**rounds[ROUNDS // 2], "best_per_second": rounds[-1]["per_second"], "rounds": ROUNDS}


def _settled(site: Site1k) -> None:
    """Wait until all is Active: what its machines report of that must not count to the next row."""
    until = time.monotonic() + SETTLE_WITHIN_S
    while next(iter(site.stack.workspace.compute_clusters(state="provisioning")), None) is not None:
        if time.monotonic() > until:
            raise RuntimeError(f"not all that was created is Active after {SETTLE_WITHIN_S:.0f} s")
        time.sleep(0.1)


def _one_by_one(site: Site1k, count: int) -> Result:
    say("creations: one client, one after the other")
    return _round(site, count // 10, 1)


def _round(site: Site1k, count: int, clients: int) -> Result:
    requests = Requests(f"{WORK}/compute-clusters", "POST", BODY, clients, count, first=_numbers(count))
    with spending(site.stack.site_pid) as spent:
        seen = send(site.login, requests)
    if set(seen["statuses"]) != {"201"}:
        raise RuntimeError(f"creations were refused: {seen['statuses']}")
    return {**seen, "site_cpu_ms_each": round(1000 * spent.cpu_s / count, 2)}


def _rate(result: Result) -> float:
    return float(result["per_second"])


_used = 0


def _numbers(count: int) -> int:
    """Return the first of `count` numbers that no name has yet."""
    global _used
    _used += count
    return _used - count
