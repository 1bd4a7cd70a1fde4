"""Organisations: members, invitations, workspaces, clusters, events, audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.client import journal, money
from corral.client.alerts import Alert, AlertRules, Webhooks
from corral.client.cluster_models import ClusterRequest, Look, MachineLimit
from corral.client.clusters import Cluster
from corral.client.decode import decode
from corral.client.models import (
    ClusterInfo,
    HostedCluster,
    Invitation,
    JournalEntry,
    Member,
    NewLink,
    OrgInfo,
    WorkspaceInfo,
)
from corral.client.transport import Transport, quoted
from corral.client.workspaces import Workspace


class Org:
    """One organisation, by its short name. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = f"/api/v1/orgs/{quoted(name)}"
        self.alert_rules = AlertRules(transport, self._path)
        self.webhooks = Webhooks(transport, self._path)

    def show(self) -> OrgInfo:
        return decode(OrgInfo, self._transport.call("GET", self._path))

    def change(self, *, name: str | None = None, contact: str | None = None) -> OrgInfo:
        """Change what is given. Owners only."""
        given = {"name": name, "contact": contact}
        body = {key: value for key, value in given.items() if value is not None}
        return decode(OrgInfo, self._transport.call("PATCH", self._path, body))

    def remove(self) -> None:
        """Remove an organisation that has nothing left. Operators only. Errors: `CONFLICT`."""
        self._transport.call("DELETE", self._path)

    def invite_owner(self, login: str | None = None, ttl_seconds: int | None = None) -> NewLink:
        """Invite the first owner, or a new one where none is left. Operators only."""
        return self._link("owner-invitations", {"login": login, "ttl_seconds": ttl_seconds})

    # -- people

    def members(self) -> Iterator[Member]:
        for item in self._transport.pages(f"{self._path}/members"):
            yield decode(Member, item)

    def set_role(self, user: str, role: str) -> Member:
        """Give a member (login or id) a role: owner | admin | member. Errors: `LAST_OWNER`, …"""
        return decode(Member, self._transport.call("PATCH", f"{self._path}/members/{quoted(user)}", {"role": role}))

    def remove_member(self, user: str) -> None:
        self._transport.call("DELETE", f"{self._path}/members/{quoted(user)}")

    def login_link(self, user: str) -> NewLink:
        """Make a one-time link for a member who lost their password. Owners only."""
        return self._link(f"members/{quoted(user)}/login-links", None)

    def invite(self, role: str = "member", login: str | None = None, ttl_seconds: int | None = None) -> NewLink:
        """Make a one-time invitation; `login`: meant for this person only. Owners only."""
        return self._link("invitations", {"role": role, "login": login, "ttl_seconds": ttl_seconds})

    def invitations(self) -> Iterator[Invitation]:
        for item in self._transport.pages(f"{self._path}/invitations"):
            yield decode(Invitation, item)

    def revoke_invitation(self, id: str) -> None:
        self._transport.call("DELETE", f"{self._path}/invitations/{quoted(id)}")

    # -- workspaces

    def workspaces(self) -> Iterator[WorkspaceInfo]:
        """Yield the workspaces you may see, by short name."""
        for item in self._transport.pages(f"{self._path}/workspaces"):
            yield decode(WorkspaceInfo, item)

    def workspace(self, name: str) -> Workspace:
        return Workspace(self._transport, self._path, name)

    def create_workspace(self, slug: str, name: str | None = None) -> WorkspaceInfo:
        body = {"slug": slug, "name": name or slug}
        return decode(WorkspaceInfo, self._transport.call("POST", f"{self._path}/workspaces", body))

    # -- clusters

    def clusters(self) -> Iterator[ClusterInfo]:
        """Yield the clusters that the organisation uses, by short name."""
        for item in self._transport.pages(f"{self._path}/clusters"):
            yield decode(ClusterInfo, item)

    def cluster(self, name: str) -> Cluster:
        return Cluster(self._transport, self._path, name)

    def use_hosted_cluster(self) -> HostedCluster:
        """Begin to use the site's hosted cluster. Again: the same answer."""
        return decode(HostedCluster, self._transport.call("POST", f"{self._path}/hosted-cluster"))

    def hosted_offered(self) -> bool:
        """Return whether the organisation could begin to use the hosted cluster: it does not use it."""
        page = self._transport.call("GET", f"{self._path}/clusters", params={"page_size": 1})
        return bool(page["hosted_offered"])

    def create_dedicated_cluster(self, slug: str, name: str | None = None, *, id: str | None = None) -> ClusterInfo:
        """Make a cluster of the organisation's own, or give one back (`id`) that it left. Operators only."""
        body = {"slug": slug, "name": name or slug, **({"id": id} if id is not None else {})}
        return decode(ClusterInfo, self._transport.call("POST", f"{self._path}/dedicated-clusters", body))

    def request_cluster(self, name: str, note: str = "") -> ClusterRequest:
        """Ask the site's operator for a cluster of the organisation's own. Admins only."""
        body = {"name": name, "note": note}
        return decode(ClusterRequest, self._transport.call("POST", f"{self._path}/cluster-requests", body))

    def cluster_requests(self) -> Iterator[ClusterRequest]:
        """Yield what the organisation asked for, newest first, with the answers. Admins only."""
        for item in self._transport.pages(f"{self._path}/cluster-requests"):
            yield decode(ClusterRequest, item)

    def withdraw_cluster_request(self, id: str) -> None:
        """Take a request back. Errors: `CONFLICT` when it is over already."""
        self._transport.call("DELETE", f"{self._path}/cluster-requests/{quoted(id)}")

    def set_machine_limit(self, machines: int | None) -> MachineLimit:
        """Set the organisation's own limit on the hosted cluster; None: the site's. Operators only."""
        return decode(MachineLimit, self._transport.call("PUT", f"{self._path}/machine-limit", {"machines": machines}))

    # -- break-glass

    def break_glass(self, reason: str, ttl_seconds: int = 3600) -> Look:
        """Open the organisation's data to yourself for reading, with a reason that it sees. Operators only."""
        body = {"reason": reason, "ttl_seconds": ttl_seconds}
        return decode(Look, self._transport.call("POST", f"{self._path}/break-glass", body))

    def looks(self) -> Iterator[Look]:
        """Yield when and why the operator could look into the organisation, newest first."""
        for item in self._transport.pages(f"{self._path}/break-glass"):
            yield decode(Look, item)

    def end_look(self, id: str) -> None:
        """End one at once. Owners, and operators."""
        self._transport.call("DELETE", f"{self._path}/break-glass/{quoted(id)}")

    # -- alerts

    def alerts(
        self,
        *,
        open: bool | None = None,
        kind: str | None = None,
        workspace: str | None = None,
        cluster: str | None = None,
        machine: str | None = None,
    ) -> Iterator[Alert]:
        """Yield alerts, the newest first; members see those about their workspaces. `machine` needs `cluster`."""
        asked = {"kind": kind, "workspace": workspace, "cluster": cluster, "machine": machine}
        params = {**asked, "open": None if open is None else str(open).lower()}
        for item in self._transport.pages(f"{self._path}/alerts", params):
            yield decode(Alert, item)

    # -- usage and budgets

    def usage(self, query: money.UsageQuery = money.THIS_MONTH) -> money.UsageReport:
        """Return what was used and what it costs. Members get that of their own workloads."""
        return money.usage(self._transport, f"{self._path}/usage", query)

    def usage_csv(self, query: money.UsageQuery = money.THIS_MONTH) -> Iterator[bytes]:
        """Yield the same groups as a CSV file, in parts."""
        return money.usage_csv(self._transport, f"{self._path}/usage", query)

    def budgets(self) -> Iterator[money.Budget]:
        """Yield the workspaces' budgets and how this month stands. Admins only."""
        for item in self._transport.pages(f"{self._path}/budgets"):
            yield decode(money.Budget, item)

    def set_budget(
        self, workspace: str, amount: str, currency: str, thresholds: Sequence[int] = (50, 80, 100)
    ) -> money.Budget:
        """Set a workspace's monthly budget; `thresholds` in percent. It tells, and stops nothing."""
        body = {"amount": amount, "currency": currency, "thresholds": list(thresholds)}
        path = f"{self._path}/budgets/{quoted(workspace)}"
        return decode(money.Budget, self._transport.call("PUT", path, body))

    def remove_budget(self, workspace: str) -> None:
        self._transport.call("DELETE", f"{self._path}/budgets/{quoted(workspace)}")

    # -- the journal

    def events(self, want: journal.Filter = journal.EVERYTHING) -> Iterator[JournalEntry]:
        """Yield what happened to machines and workloads, newest first."""
        return journal.entries(self._transport, f"{self._path}/events", want)

    def export_events(self, want: journal.Filter = journal.EVERYTHING, *, format: str = "ndjson") -> Iterator[bytes]:
        """Yield a file of events, oldest first, in parts; `format`: ndjson | csv."""
        return journal.export(self._transport, f"{self._path}/events/export", want, format)

    def export_audit(self, want: journal.Filter = journal.EVERYTHING, *, format: str = "ndjson") -> Iterator[bytes]:
        """Yield a file of the audit, oldest first, in parts. Admins only."""
        return journal.export(self._transport, f"{self._path}/audit/export", want, format)

    def follow_events(
        self, want: journal.Filter = journal.EVERYTHING, *, after: str | None = None
    ) -> Iterator[JournalEntry]:
        """Yield events as they happen, for ever; `after`: an entry's id to go on from, missing nothing."""
        return journal.follow(self._transport, f"{self._path}/events/stream", want, after)

    def audit(self, want: journal.Filter = journal.EVERYTHING) -> Iterator[JournalEntry]:
        """Yield who did what, newest first. Admins only."""
        return journal.entries(self._transport, f"{self._path}/audit", want)

    def _link(self, path: str, body: dict[str, object] | None) -> NewLink:
        given = {key: value for key, value in body.items() if value is not None} if body is not None else None
        return decode(NewLink, self._transport.call("POST", f"{self._path}/{path}", given))
