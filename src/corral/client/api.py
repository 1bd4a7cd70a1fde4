"""`Corral`: the way into the SDK.

from corral import Corral
with Corral() as corral:                      # the site of `corral login`, or CORRAL_URL and CORRAL_TOKEN
    workspace = corral.org("acme").workspace("research")
    made = workspace.compute_clusters.create("train", gpus=2, wait=True)
    made = workspace.compute_clusters.wait_active("train")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from corral.client import config, journal, money
from corral.client.cluster_models import ClusterRequest, DedicatedCluster
from corral.client.decode import decode
from corral.client.models import JournalEntry, Me, NewToken, OrgInfo, SiteSettings, SshKey, Token
from corral.client.orgs import Org
from corral.client.transport import Transport, quoted


class Corral:
    """One site as one person. A context manager; or call `close`.

    Without arguments: the site and token of `corral login`, or of CORRAL_URL and CORRAL_TOKEN.
    `ca` is the PEM of the CA to pin. Errors of every method: `CorralError`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: str | None = None,
        site: config.Site | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if site is None:
            site = config.Site(url.rstrip("/"), token, ca) if url else config.current()
        self.transport = Transport(site, sleep=sleep)
        self.site = Site(self.transport)

    def __enter__(self) -> Corral:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    def orgs(self) -> Iterator[OrgInfo]:
        """Yield the organisations you are in (operators: all), by short name."""
        for item in self.transport.pages("/api/v1/orgs"):
            yield decode(OrgInfo, item)

    def org(self, name: str) -> Org:
        return Org(self.transport, name)

    def create_org(self, slug: str, name: str | None = None, contact: str = "") -> OrgInfo:
        """Make an organisation. Operators only."""
        body = {"slug": slug, "name": name or slug, "contact": contact}
        return decode(OrgInfo, self.transport.call("POST", "/api/v1/orgs", body))

    # -- oneself

    def me(self) -> Me:
        return decode(Me, self.transport.call("GET", "/api/v1/me"))

    def rename_me(self, name: str) -> Me:
        return decode(Me, self.transport.call("PATCH", "/api/v1/me", {"name": name}))

    def set_password(self, password: str, present: str | None = None) -> None:
        """Set your password (`present`: the one you have now, if any). Your other logins end."""
        body = {"password": password, "present": present}
        self.transport.call("PUT", "/api/v1/me/password", {k: v for k, v in body.items() if v is not None})

    def ssh_keys(self) -> Iterator[SshKey]:
        for item in self.transport.pages("/api/v1/me/ssh-keys"):
            yield decode(SshKey, item)

    def add_ssh_key(self, public_key: str, name: str | None = None) -> SshKey:
        """Keep a public key. Errors: `INVALID_SSH_KEY`, `CONFLICT` (kept already)."""
        body = {"public_key": public_key, "name": name}
        given = {key: value for key, value in body.items() if value is not None}
        return decode(SshKey, self.transport.call("POST", "/api/v1/me/ssh-keys", given))

    def remove_ssh_key(self, id: str) -> None:
        """Remove a key, by id or name; it is detached everywhere at once."""
        self.transport.call("DELETE", f"/api/v1/me/ssh-keys/{quoted(id)}")

    def tokens(self) -> Iterator[Token]:
        for item in self.transport.pages("/api/v1/me/tokens"):
            yield decode(Token, item)

    def create_token(
        self, name: str, scopes: Sequence[str] = ("all",), expires_in_seconds: int | None = None
    ) -> NewToken:
        """Make an API token; its secret comes once. None: it works for 90 days."""
        body = {"name": name, "scopes": list(scopes), "expires_in_seconds": expires_in_seconds}
        given = {key: value for key, value in body.items() if value is not None}
        return decode(NewToken, self.transport.call("POST", "/api/v1/me/tokens", given))

    def revoke_token(self, id: str) -> None:
        """Revoke a token of yours, by id or public id; its open streams close."""
        self.transport.call("DELETE", f"/api/v1/me/tokens/{quoted(id)}")


class Site:
    """The site itself. Operators only."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(self) -> SiteSettings:
        return decode(SiteSettings, self._transport.call("GET", "/api/v1/site"))

    def change(
        self,
        *,
        contact: str | None = None,
        hosted_machine_limit: int | None = None,
        private_targets: Sequence[str] | None = None,
    ) -> SiteSettings:
        """Change what is given. `private_targets`: private networks (CIDR) that tenants may be told in."""
        targets = None if private_targets is None else list(private_targets)
        given = {"contact": contact, "hosted_machine_limit": hosted_machine_limit, "private_targets": targets}
        body = {key: value for key, value in given.items() if value is not None}
        return decode(SiteSettings, self._transport.call("PATCH", "/api/v1/site", body))

    def clusters(self) -> Iterator[DedicatedCluster]:
        """Yield the site's dedicated clusters, those that were left too."""
        for item in self._transport.pages("/api/v1/site/clusters"):
            yield decode(DedicatedCluster, item)

    def delete_cluster(self, id: str) -> None:
        """Delete a dedicated cluster that was left and has no machine. Errors: `CLUSTER_IN_USE`."""
        self._transport.call("DELETE", f"/api/v1/site/clusters/{quoted(id)}")

    def cluster_requests(self) -> Iterator[ClusterRequest]:
        """Yield every organisation's requests for a cluster, open ones first."""
        for item in self._transport.pages("/api/v1/site/cluster-requests"):
            yield decode(ClusterRequest, item)

    def answer_cluster_request(self, id: str, slug: str, name: str | None = None) -> ClusterRequest:
        """Make the cluster that was asked for. Errors: `NAME_TAKEN`; `CONFLICT` when it is over already."""
        return self._answer(id, {"slug": slug, **({"name": name} if name is not None else {})})

    def decline_cluster_request(self, id: str, why: str) -> ClusterRequest:
        """Say that there will be none, and why. Errors: `CONFLICT` when it is over already."""
        return self._answer(id, {"decline": why})

    def _answer(self, id: str, body: dict[str, str]) -> ClusterRequest:
        path = f"/api/v1/site/cluster-requests/{quoted(id)}/answer"
        return decode(ClusterRequest, self._transport.call("POST", path, body))

    def prices(self) -> money.Prices:
        """Return what the hosted cluster costs now."""
        return money.prices(self._transport, "/api/v1/site/prices")

    def set_prices(self, currency: str, **rates: Any) -> money.Prices:
        """Set the hosted cluster's whole price table, valid from now, as `Cluster.set_prices` does."""
        return money.set_prices(self._transport, "/api/v1/site/prices", currency, rates)

    def price_history(self) -> Iterator[money.PriceTable]:
        """Yield the hosted cluster's price tables, newest first."""
        return money.price_history(self._transport, "/api/v1/site/prices")

    def audit(self, want: journal.Filter = journal.EVERYTHING) -> Iterator[JournalEntry]:
        """Yield the site's own audit entries, newest first; of `want`: types, actor and times."""
        return journal.entries(self._transport, "/api/v1/site/audit", want)
