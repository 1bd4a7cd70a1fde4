"""Workspaces: people, access to clusters, machines, compute clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corral.client import topology
from corral.client.compute import ComputeCluster, creation
from corral.client.compute_models import ComputeInfo, Explanation
from corral.client.decode import decode
from corral.client.machine_models import AllocatedMachine
from corral.client.models import Access, NewJoinToken, WorkspaceInfo, WorkspaceMember
from corral.client.topology import LocatedGpu, TopologySite
from corral.client.transport import Transport, quoted


class Workspace:
    """One workspace, by its short name. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, org_path: str, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = f"{org_path}/workspaces/{quoted(name)}"

    def show(self) -> WorkspaceInfo:
        return decode(WorkspaceInfo, self._transport.call("GET", self._path))

    def rename(self, name: str) -> WorkspaceInfo:
        """Change how it is shown; the short name never changes."""
        return decode(WorkspaceInfo, self._transport.call("PATCH", self._path, {"name": name}))

    def remove(self) -> None:
        """Remove a workspace in which nothing lives. Errors: `CONFLICT`, naming what does."""
        self._transport.call("DELETE", self._path)

    def members(self) -> Iterator[WorkspaceMember]:
        for item in self._transport.pages(f"{self._path}/members"):
            yield decode(WorkspaceMember, item)

    def set_member(self, user: str, part: str = "member") -> WorkspaceMember:
        """Put a member of the organisation (login or id) in, or change their part: lead | member."""
        path = f"{self._path}/members/{quoted(user)}"
        return decode(WorkspaceMember, self._transport.call("PUT", path, {"part": part}))

    def remove_member(self, user: str) -> None:
        self._transport.call("DELETE", f"{self._path}/members/{quoted(user)}")

    def access(self) -> Iterator[Access]:
        """Yield what the workspace may use, by cluster."""
        for item in self._transport.pages(f"{self._path}/access"):
            yield decode(Access, item)

    def set_access(self, cluster: str, pools: Sequence[str], quota: Mapping[str, object] | None = None) -> Access:
        """Set the pools (`*`: every machine) and the quota (None: no limit). What runs keeps running.

        `quota`: the fields of `Quota`; what is left out has no limit.
        """
        body = {"pools": list(pools), "quota": dict(quota or {})}
        return decode(Access, self._transport.call("PUT", f"{self._path}/access/{quoted(cluster)}", body))

    def revoke_access(self, cluster: str) -> None:
        """Take the access away. Errors: `CONFLICT` while work of the workspace lives there."""
        self._transport.call("DELETE", f"{self._path}/access/{quoted(cluster)}")

    def create_join_token(
        self, labels: Mapping[str, str] | None = None, ttl_seconds: int = 3600, *, cluster: str | None = None
    ) -> NewJoinToken:
        """Make a token with which one machine joins; the workspace is granted the label's pool.

        An organisation without a cluster begins to use the hosted one. Errors: as of a cluster's, and
        `CLUSTER_REQUIRED` where there are several and none is named.
        """
        body = {"labels": dict(labels or {}), "ttl_seconds": ttl_seconds}
        given = body if cluster is None else {**body, "cluster": cluster}
        return decode(NewJoinToken, self._transport.call("POST", f"{self._path}/enrollment-tokens", given))

    def machines(self) -> Iterator[AllocatedMachine]:
        """Yield the machines of the workspace's pools: look here before creating something."""
        for item in self._transport.pages(f"{self._path}/machines"):
            yield decode(AllocatedMachine, item)

    def gpus(self) -> Iterator[LocatedGpu]:
        """Yield the GPUs of those machines, by machine and slot."""
        return topology.gpus(self._transport, self._path)

    def topology(self) -> list[TopologySite]:
        """Return those machines as a tree: site, rack, fabric, machine, GPU."""
        return topology.topology(self._transport, self._path)

    # -- compute clusters

    def compute_clusters(
        self, state: str | None = None, *, name: str | None = None, include_ended: bool = False
    ) -> Iterator[ComputeInfo]:
        """Yield the workspace's compute clusters, newest first; ended ones only with `include_ended`."""
        params = {"state": state, "name": name, "include_ended": "true" if include_ended else None}
        for item in self._transport.pages(f"{self._path}/compute-clusters", params):
            yield decode(ComputeInfo, item)

    def compute_cluster(self, name: str) -> ComputeCluster:
        return ComputeCluster(self._transport, self._path, name)

    def create_compute_cluster(
        self,
        name: str,
        *,
        cluster: str | None = None,
        machine: str | None = None,
        pool: str | None = None,
        gpu_model: str | None = None,
        gpus: int = 0,
        vcpu: int | None = None,
        ram_gib: int | None = None,
        storage_gib: int | None = None,
        image: str | None = None,
        ssh_keys: Sequence[str] | None = None,
        time_limit_seconds: int | None = None,
        drives: Sequence[str] = (),
        restart_policy: str | None = None,
        wait: bool = False,
    ) -> ComputeInfo:  # the API's own fields, each by name
        """Carve a compute cluster from a machine.

        None: the machine's fair share for that many GPUs; the site's base image; all your keys.
        `drives`: kept on each machine, read-only at /drives/NAME. `restart_policy`: never (default) |
        on_machine_loss. `wait`: queue where nothing is free now. Errors: `NO_CAPACITY`, `QUOTA_EXCEEDED`, …
        """
        body = creation(
            name=name,
            cluster=cluster,
            machine=machine,
            pool=pool,
            gpu_model=gpu_model,
            gpus=gpus,
            vcpu=vcpu,
            ram_gib=ram_gib,
            storage_gib=storage_gib,
            image=image,
            ssh_keys=list(ssh_keys) if ssh_keys is not None else None,
            time_limit_seconds=time_limit_seconds,
            drives=list(drives) or None,
            restart_policy=restart_policy,
            wait=wait,
        )
        return decode(ComputeInfo, self._transport.call("POST", f"{self._path}/compute-clusters", body))

    def explain_placement(self, **asked: Any) -> Explanation:
        """Say which machines would take an ask (as for `create_compute_cluster`) now, and why each other would not."""
        body = creation(**asked)
        return decode(Explanation, self._transport.call("POST", f"{self._path}/placements/explain", body))
