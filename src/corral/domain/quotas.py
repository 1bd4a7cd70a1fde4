"""A workspace's GPU quota on a cluster: never exceeded (spec 20, "Create"; spec 60, line 2). And how many may wait."""

from __future__ import annotations

from dataclasses import dataclass

from corral.domain.errors import Refusal

MAX_WAITING = 200
"""Workloads of a workspace that wait for one cluster: work without GPUs costs no quota, waiting costs everybody."""


@dataclass(frozen=True)
class Use:
    """How a quota is used. `before` are the GPUs that the workspace's own workloads ask for that wait longer:
    first come, first served holds for the quota too."""

    limit: int
    live: int
    before: int
    asked: int

    @property
    def excess(self) -> int:
        """By how many GPUs the ask exceeds the quota. Work without GPUs never does."""
        return max(0, self.live + self.before + self.asked - self.limit) if self.asked else 0


def explain(use: Use) -> str:
    waiting = f", {use.before} more are asked for by what waits before this" if use.before else ""
    return f"quota: {use.live} of {use.limit} GPUs are in use{waiting}; {use.asked} asked is {use.excess} too many"


def exceeded(where: str, use: Use) -> Refusal:
    """`where` names workspace and cluster."""
    return Refusal(
        "QUOTA_EXCEEDED",
        f"{where}: {explain(use)}. Ask for less, terminate something, or ask an admin for more.",
        quota=use.limit,
        in_use=use.live,
        waiting=use.before,
        asked=use.asked,
        over_by=use.excess,
    )


def check_waiting(where: str, waiting: int) -> None:
    """Refuse one more that would wait. Errors: `QUEUE_FULL`."""
    if waiting >= MAX_WAITING:
        raise Refusal(
            "QUEUE_FULL",
            f"{where}: {waiting} workloads wait already, which is the most. Terminate one, or ask again when some run.",
            waiting=waiting,
        )
