"""A workspace's GPU quota on a cluster: never exceeded (spec 20, "Create"; spec 60, line 2)."""

from __future__ import annotations

from dataclasses import dataclass

from corral.domain.errors import Refusal


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
