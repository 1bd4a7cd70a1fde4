"""Clusters, join tokens and machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corral.client import money
from corral.client.cluster_models import Leaving
from corral.client.decode import decode
from corral.client.gpu_faults import GpuFaults
from corral.client.machine_models import Affected, DataLocationAnswer, Machine, MachineDetails, Removal
from corral.client.models import ClusterInfo, JoinToken, NewJoinToken
from corral.client.reservations import Placement, Reservations
from corral.client.transport import Transport, quoted
from corral.client.updates import Updates


class Cluster:
    """One cluster of an organisation, by its short name. Asks nothing until a method is called."""

    def __init__(self, transport: Transport, org_path: str, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = f"{org_path}/clusters/{quoted(name)}"
        self.reservations = Reservations(transport, self._path)
        self.updates = Updates(transport, self._path)
        self.faults = GpuFaults(transport, self._path)

    def show(self) -> ClusterInfo:
        return decode(ClusterInfo, self._transport.call("GET", self._path))

    def rename(self, name: str) -> ClusterInfo:
        """Change how it is shown; the short name never changes."""
        return decode(ClusterInfo, self._transport.call("PATCH", self._path, {"name": name}))

    def would_leave(self) -> Leaving:
        """Return what leaving the cluster comes to; changes nothing."""
        return decode(Leaving, self._transport.call("DELETE", self._path, params={"dry_run": "true"}))

    def leave(self) -> Leaving:
        """Take the cluster out of the organisation; its machines stay enrolled. Errors: `CLUSTER_IN_USE`."""
        return decode(Leaving, self._transport.call("DELETE", self._path))

    def create_join_token(self, labels: Mapping[str, str] | None = None, ttl_seconds: int = 3600) -> NewJoinToken:
        """Make a token with which one machine joins. Errors: `RESERVED_LABEL`, `INVALID_LABEL`, `LIMIT_REACHED`, …"""
        body = {"labels": dict(labels or {}), "ttl_seconds": ttl_seconds}
        return decode(NewJoinToken, self._transport.call("POST", f"{self._path}/enrollment-tokens", body))

    def join_tokens(self) -> Iterator[JoinToken]:
        """Yield the tokens that may still be used, oldest first."""
        for item in self._transport.pages(f"{self._path}/enrollment-tokens"):
            yield decode(JoinToken, item)

    def revoke_join_token(self, id: str) -> None:
        self._transport.call("DELETE", f"{self._path}/enrollment-tokens/{quoted(id)}")

    # -- prices

    def prices(self) -> money.Prices:
        """Return what the cluster costs now."""
        return money.prices(self._transport, f"{self._path}/prices")

    def set_prices(self, currency: str, **rates: Any) -> money.Prices:
        """Set the whole price table, valid from now: `gpu_hour` (by model), `vcpu_hour`, `ram_gib_hour`, …

        What is left out costs nothing. Amounts are decimal strings. The hosted cluster's: operators only.
        """
        return money.set_prices(self._transport, f"{self._path}/prices", currency, rates)

    def price_history(self) -> Iterator[money.PriceTable]:
        """Yield the price tables there were, newest first."""
        return money.price_history(self._transport, f"{self._path}/prices")

    # -- machines

    def machines(self, state: str | None = None, pools: Sequence[str] = ()) -> Iterator[Machine]:
        """Yield the organisation's machines here, by name; `state`: idle | up | down."""
        for item in self._transport.pages(f"{self._path}/nodes", {"state": state, "pool": list(pools) or None}):
            yield decode(Machine, item)

    def machine(self, name: str) -> MachineDetails:
        return decode(MachineDetails, self._transport.call("GET", self._node(name)))

    def cordon(self, name: str, reason: str | None = None) -> Machine:
        """Stop new work landing on a machine; what runs there keeps running."""
        return decode(Machine, self._transport.call("POST", f"{self._node(name)}/cordon", {"reason": reason}))

    def uncordon(self, name: str) -> Machine:
        return decode(Machine, self._transport.call("POST", f"{self._node(name)}/uncordon"))

    def release_quarantine(self, name: str) -> Machine:
        """Decide that a suspected clone, or a machine with unknown work, takes new work again."""
        return decode(Machine, self._transport.call("POST", f"{self._node(name)}/release-quarantine"))

    def affected(self, name: str) -> Affected:
        """Return what runs on a machine and who may use it; changes nothing."""
        return self.would_remove(name)

    def would_remove(self, name: str) -> Removal:
        """Return what removing a machine by force would do; changes nothing."""
        return decode(Removal, self._transport.call("DELETE", self._node(name), params={"dry_run": "true"}))

    def remove(self, name: str, *, force: bool = False) -> Removal:
        """Remove a machine for ever. Errors: `NODE_IN_USE` while work runs there, unless `force`."""
        params = {"force": "true" if force else None}
        return decode(Removal, self._transport.call("DELETE", self._node(name), params=params))

    def choose_data_location(
        self, name: str, path: str, *, max_bytes: int = 0, dry_run: bool = False
    ) -> DataLocationAnswer:
        """Choose the folder on a machine where drive copies may be kept. Errors: `INVALID_PATH`."""
        body, params = {"path": path, "max_bytes": max_bytes}, {"dry_run": "true" if dry_run else None}
        told = self._transport.call("PUT", f"{self._node(name)}/data-location", body, params=params)
        return decode(DataLocationAnswer, told)

    def forget_data_location(self, name: str, *, dry_run: bool = False) -> DataLocationAnswer:
        """Forget it; nothing on the disk is removed. Errors: `DATA_LOCATION_IN_USE` while it holds drive copies."""
        params = {"dry_run": "true" if dry_run else None}
        told = self._transport.call("DELETE", f"{self._node(name)}/data-location", params=params)
        return decode(DataLocationAnswer, told)

    def place(self, name: str, labels: Mapping[str, str], *, dry_run: bool = False) -> Placement:
        """Set those of pool, site, rack and fabric that are given ("" takes one away). Errors: `INVALID_LABEL`."""
        params = {"dry_run": "true" if dry_run else None}
        answer = self._transport.call("PUT", f"{self._node(name)}/placement", dict(labels), params)
        return decode(Placement, answer)

    def _node(self, name: str) -> str:
        return f"{self._path}/nodes/{quoted(name)}"
