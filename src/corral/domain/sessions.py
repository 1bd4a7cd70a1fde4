"""What a machine says on its session, and when two sessions betray a copy (spec 40, "Joining"; design decisions 1-3).

A machine's secret only opens sessions. Each hello begins a new epoch, and the newest session
is the machine. Which process speaks is told by its *instance*: random, made when the agent
started, never stored, so a copied state folder cannot copy it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from corral.domain import allocations, data_location, updates
from corral.domain.inventory import Condition, Inventory
from corral.domain.machines import MachineRef

REMEMBERED = 16
"""How many past sessions of a machine are kept to tell a copy from a restart."""


@dataclass(frozen=True)
class Hello:
    """The first word of a session. `incarnation` is the site's under which the agent last worked ("" = none yet)."""

    protocol: int
    release: str
    instance: str
    boot_id: str
    pid: int
    incarnation: str = ""


@dataclass(frozen=True)
class Report:
    """What a machine says of itself. `inventory` only when it changed; `digest` stands for it between."""

    release: str
    digest: str
    inventory: Inventory | None
    conditions: Sequence[Condition]
    allocations: Sequence[allocations.Report]
    unreadable: Collection[str] = ()
    """Allocations that it speaks of in a way that cannot be read."""
    data_location: data_location.Seen | None = None
    update: updates.Said | None = None
    boot_id: str = ""
    kernel_lines: Sequence[tuple[int, str]] = ()
    """Lines of that boot about GPUs, each with its number, which grows."""


@dataclass(frozen=True)
class Opened:
    """A session as the site knows it. Every write that comes from it carries its epoch; older ones are refused."""

    machine_id: str
    org_id: str
    cluster_id: str
    name: str
    epoch: int
    incarnation: str
    """The site's."""

    @property
    def machine(self) -> MachineRef:
        return MachineRef(self.machine_id, self.org_id, self.cluster_id, self.name)


def is_clone(recent: Sequence[str], instance: str) -> bool:
    """Return whether `instance` was superseded and says hello again (A, B, A): two copies go on.

    `recent` are the instances of the last sessions, oldest first. The same instance again
    replaces its own dead connection; one never seen before is an agent that was restarted.
    """
    return bool(recent) and recent[-1] != instance and instance in recent


def may_be_told(want: allocations.Desired, quarantined: bool, running_here: Collection[str]) -> bool:
    """Return whether a session is told to converge to `want`.

    In quarantine each is told only to stop, or about what itself has running: else a copied machine
    would start a second time what runs on the other, and one that runs what this site does not know
    would start something beside it on the same GPUs.
    """
    return not quarantined or want.stop or want.id in running_here
