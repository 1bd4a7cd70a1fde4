"""What the journal records: every event type, and whether it is an event, an audit entry or both (spec 10).

An *event* is something that happened to a machine or workload; an *audit entry* is who did
what. Both are views of one journal (design decision 7). Nothing is recorded under a type
that is missing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from corral.domain.errors import Refusal
from corral.domain.ids import shown


class Class(Enum):
    EVENT = "event"
    AUDIT = "audit"
    BOTH = "both"


TYPES: Mapping[str, tuple[Class, str]] = {
    # site, organisations, people
    "site.started": (Class.AUDIT, "The control plane started."),
    "site.changed": (Class.AUDIT, "A setting of the site was changed."),
    "site.restored": (Class.AUDIT, "A back-up was restored: new incarnation, sessions and tokens revoked."),
    "site.suspected": (
        Class.BOTH,
        "Most machines fell silent together: the site suspects itself and marks none Down.",
    ),
    "org.created": (Class.AUDIT, "An organisation was made."),
    "org.changed": (Class.AUDIT, "An organisation's name or contact line was changed."),
    "org.removed": (Class.AUDIT, "An organisation was removed."),
    "org.member.invited": (Class.AUDIT, "A one-time invitation was made."),
    "org.invitation.revoked": (Class.AUDIT, "An invitation was revoked."),
    "org.member.joined": (Class.AUDIT, "A person accepted an invitation."),
    "org.member.role": (Class.AUDIT, "A member's role was changed."),
    "org.member.removed": (Class.AUDIT, "A member was removed; streams and sessions end."),
    "workspace.created": (Class.AUDIT, "A workspace was made."),
    "workspace.changed": (Class.AUDIT, "A workspace's name was changed."),
    "workspace.removed": (Class.AUDIT, "A workspace was removed."),
    "workspace.member.set": (Class.AUDIT, "A person was put into a workspace, or their part in it changed."),
    "workspace.member.removed": (Class.AUDIT, "A person was taken out of a workspace."),
    "workspace.access": (Class.AUDIT, "A workspace's pools or quota on a cluster were changed."),
    "workspace.budget": (Class.AUDIT, "A workspace's monthly budget was set or removed."),
    "workspace.budget.reached": (Class.EVENT, "A workspace's costs of this month reached a threshold of its budget."),
    "org.machine_limit": (Class.AUDIT, "The operator changed the organisation's machine limit on the hosted cluster."),
    "org.cluster.requested": (Class.AUDIT, "The organisation asked for a dedicated cluster, or withdrew that."),
    "org.cluster.answered": (Class.AUDIT, "The operator answered the request for a dedicated cluster."),
    "org.break_glass.began": (Class.AUDIT, "The operator opened the organisation's data to themselves, with a reason."),
    "org.break_glass.used": (Class.AUDIT, "The operator looked at something of the organisation under break-glass."),
    "org.break_glass.ended": (Class.AUDIT, "A break-glass look was ended before its time."),
    "webhook.created": (Class.AUDIT, "A webhook was made."),
    "webhook.changed": (Class.AUDIT, "A webhook was changed."),
    "webhook.removed": (Class.AUDIT, "A webhook was removed."),
    "webhook.tested": (Class.AUDIT, "A test was sent to a webhook."),
    "webhook.disabled": (Class.AUDIT, "The site disabled a webhook: it is gone, or has taken nothing for days."),
    "alert_rule.created": (Class.AUDIT, "An alert rule was made."),
    "alert_rule.changed": (Class.AUDIT, "An alert rule was changed."),
    "alert_rule.removed": (Class.AUDIT, "An alert rule was removed."),
    "alert_rule.tested": (Class.AUDIT, "A test was sent to whom an alert rule tells."),
    "user.logged_in": (Class.AUDIT, "Somebody logged in."),
    "user.login_refused": (Class.AUDIT, "A password or one-time link was refused."),
    "user.changed": (Class.AUDIT, "A person changed their own name."),
    "user.password": (Class.AUDIT, "A password was set or changed."),
    "user.link": (Class.AUDIT, "A one-time login link was made."),
    "token.created": (Class.AUDIT, "An API token was made."),
    "token.revoked": (Class.AUDIT, "An API token was revoked."),
    "ssh_key.added": (Class.AUDIT, "A person added an SSH key."),
    "ssh_key.removed": (Class.AUDIT, "A person removed an SSH key; it is detached everywhere."),
    "access.denied": (Class.AUDIT, "A role did not allow what was asked."),
    # clusters and joining
    "cluster.hosted.joined": (Class.AUDIT, "The organisation began to use the hosted cluster (again)."),
    "cluster.created": (Class.AUDIT, "A dedicated cluster was made, or given back to its organisation."),
    "cluster.changed": (Class.AUDIT, "A cluster's shown name was changed."),
    "cluster.removed": (Class.AUDIT, "A cluster was taken out of the organisation, or deleted by the operator."),
    "cluster.prices": (Class.AUDIT, "A cluster's prices were set."),
    "cluster.reservation.created": (Class.BOTH, "Machines were reserved."),
    "cluster.reservation.removed": (Class.BOTH, "A reservation was removed."),
    "cluster.reservation.began": (Class.EVENT, "A reservation's window began."),
    "cluster.reservation.ended": (Class.EVENT, "A reservation's window ended."),
    "cluster.update": (Class.BOTH, "An update of a cluster's agents was started, stopped, or came to its end."),
    "cluster.token.created": (Class.AUDIT, "A join token was made."),
    "cluster.token.revoked": (Class.AUDIT, "A join token was revoked."),
    "cluster.token.replayed": (Class.BOTH, "A used join token came again with another key, and was refused."),
    # machines
    "cluster.node.joined": (Class.BOTH, "A machine joined."),
    "cluster.node.up": (Class.EVENT, "A machine reports (again)."),
    "cluster.node.down": (Class.EVENT, "A machine was silent for 60 seconds."),
    "cluster.node.inventory": (Class.EVENT, "What a machine has changed."),
    "cluster.node.condition": (Class.EVENT, "A condition of a machine began or ended."),
    "cluster.node.quieted": (
        Class.BOTH,
        "A machine changes what it reports so often that more of this minute is left out; its page has the newest.",
    ),
    "cluster.node.cordoned": (Class.BOTH, "A machine was cordoned."),
    "cluster.node.uncordoned": (Class.BOTH, "A machine was uncordoned."),
    "cluster.node.removed": (Class.BOTH, "A machine was removed."),
    "cluster.node.placement": (Class.BOTH, "A machine's placement labels were changed."),
    "cluster.node.upgrade": (Class.BOTH, "A machine's agent was told to update, has updated, or could not."),
    "cluster.node.data_location": (Class.BOTH, "A machine's data location was chosen, changed or forgotten."),
    "cluster.node.data_location_made": (Class.EVENT, "A machine made its data location's folder, or could not."),
    "cluster.node.gpu_fault": (Class.EVENT, "A GPU has a fault: it is fenced until an admin clears it."),
    "cluster.node.gpu_event": (
        Class.EVENT,
        "A GPU, its driver or a switch said something that fences nothing; with `look` somebody should look at it.",
    ),
    "cluster.node.gpu_fault_cleared": (
        Class.BOTH,
        "An admin cleared a GPU's faults; or, with `replaced`, another GPU took its slot.",
    ),
    "cluster.node.cloned": (
        Class.BOTH,
        "Two copies of one machine's state report: no new work until an admin decides.",
    ),
    "cluster.node.quarantine_released": (
        Class.BOTH,
        "An admin decided about a suspected clone or unknown work: the machine takes new work again.",
    ),
    "cluster.node.unknown_work": (
        Class.BOTH,
        "A machine runs work this site does not know: adopted, or waiting for an admin.",
    ),
    "cluster.node.gpu_part_cleared": (
        Class.EVENT,
        "The faults of a part of a GPU, or of the GPU that it is a part of, were cleared with the other's.",
    ),
    # workloads
    "workload.created": (Class.BOTH, "A workload was created."),
    "workload.placed": (Class.EVENT, "A workload was given a machine."),
    "workload.placed_again": (Class.EVENT, "A workload lost its machine and waits to be placed again."),
    "workload.step": (Class.EVENT, "Provisioning went on a step."),
    "workload.active": (Class.EVENT, "A workload runs."),
    "workload.out_of_sync": (Class.EVENT, "What was asked and what is seen differ."),
    "workload.restarted": (Class.EVENT, "A container that had vanished was started again."),
    "workload.oom": (Class.EVENT, "A process of a workload was killed: out of memory."),
    "workload.gpu_fault": (Class.EVENT, "A GPU that a workload holds has a fault; the workload goes on."),
    "workload.stop_asked": (Class.BOTH, "A workload was told to stop."),
    "workload.terminated": (Class.EVENT, "A workload ended; its capacity is free."),
    "workload.failed": (Class.EVENT, "A workload failed."),
    "workload.ssh_keys": (Class.AUDIT, "SSH keys were attached to or detached from a workload."),
    "workload.stream": (Class.AUDIT, "A stream (ssh, port, logs) into a workload was opened."),
}


EVENTS_KEPT = timedelta(days=90)
"""What only is an event is forgotten then; audit entries never are."""

LIMITED = frozenset(
    {
        "cluster.node.inventory",
        "cluster.node.condition",
        "cluster.node.gpu_event",
        "cluster.node.data_location_made",
        "workload.step",
        "workload.oom",
        "workload.restarted",
        "workload.gpu_fault",
    }
)
"""What a machine can cause as often as it reports: only so much a minute is recorded.

Changes of state always are, and so is all that the audit has.
"""
LEFT_OUT = "cluster.node.quieted"


def is_of(type: str, pattern: str) -> bool:
    """Return whether a type is the one named, or begins as `pattern` does: `cluster.node.*`."""
    return type.startswith(pattern[:-1]) if pattern.endswith(".*") else type == pattern


def check_types(patterns: Iterable[str], among: Collection[str], where: str) -> None:
    """Refuse a pattern that no type in `among` fits: it would find nothing. Errors: `INVALID_REQUEST`."""
    for pattern in patterns:
        if not any(is_of(type, pattern) for type in among):
            raise Refusal(
                "INVALID_REQUEST",
                f"{where}: no event is called {shown(pattern)}. Use a type of event, or the beginning of some, "
                "as in 'cluster.node.*'.",
                field=where,
            )


@dataclass(frozen=True)
class Subject:
    """What an entry is about; ids. `org` None = the site's own."""

    org: str | None = None
    cluster: str | None = None
    workspace: str | None = None
    machine: str | None = None
    workload: str | None = None


@dataclass(frozen=True)
class Entry:
    """One journal entry to be. `data` holds only fields meant for people: names, before, after, reason."""

    type: str
    subject: Subject
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise ValueError(f"undocumented event type {self.type}")
