"""The site itself: its first start, its settings, its own audit (spec 05, spec 50 "First user of a fresh site")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from corral.domain import clusters, secrets, targets, users
from corral.domain import orgs as org_rules
from corral.domain.errors import Refusal, not_found
from corral.domain.events import TYPES, Entry, Subject, check_types
from corral.domain.machines import Quarantine
from corral.store import join_tokens, journal, links, sessions
from corral.store import site as rows
from corral.store import users as user_rows
from corral.store.journal import Filter
from corral.store.transaction import SITE, Row, Tx
from corral.usecases.context import Context, new_id

NOT_HEARD = "A back-up of this site was restored; what runs on it is not known yet. Its next report decides."


@dataclass(frozen=True)
class Site:
    """`contact` is the operator's contact line; the limit is machines per organisation on the hosted cluster.

    `private_targets`: networks (CIDR) in which webhooks and alert rules may tell though they are private.
    """

    incarnation: str
    contact: str
    hosted_machine_limit: int
    private_targets: Sequence[str]
    created_at: datetime


def ensure(tx: Tx) -> None:
    """Make the site at its very first start; later nothing happens."""
    if rows.lock(tx) is None:
        rows.add(tx, new_id(tx.now), clusters.HOSTED_MACHINE_LIMIT)


def first_start(tx: Tx) -> str | None:
    """Note a start; on the very first make the site. Return a one-time link's secret while there is no operator.

    Each start without an operator makes a new link and revokes the older one.
    """
    ensure(tx)
    tx.record(Entry("site.started", Subject()), SITE)
    if user_rows.has_operator(tx):
        return None
    links.revoke_operator_links(tx)
    return _new_link(tx, links.OPERATOR, None)


def operator_link(tx: Tx, login: str) -> str:
    """Return a one-time login link's secret for an operator, made on the site's own machine. Errors: `NOT_FOUND`."""
    user = user_rows.by_login(tx, users.login(login))
    if user is None or not user["operator"]:
        raise not_found()
    links.revoke_login_links(tx, user["id"])
    tx.record(Entry("user.link", Subject(), {"login": user["login"]}), SITE)
    return _new_link(tx, links.LOGIN, user["id"])


def restored(tx: Tx) -> Sequence[str]:
    """Note that a back-up was put back in the place of a newer database; return the operators' logins.

    The site gets a new incarnation; API tokens, links and unused join tokens are revoked; a machine gets new
    work again once it has reported and all that runs there is known. What waits for capacity is placed only when
    that is so of every machine it may run on already. Only while no control plane serves.
    """
    _there(rows.lock(tx))
    rows.change(tx, incarnation=new_id(tx.now), restored_at=tx.now)
    user_rows.revoke_all_tokens(tx)
    links.revoke_all(tx)
    join_tokens.revoke_all_unused(tx)
    sessions.quarantine_all(tx, Quarantine.UNKNOWN_WORK.value, NOT_HEARD)
    tx.record(Entry("site.restored", Subject()), SITE)
    return user_rows.operators(tx)


def show(ctx: Context) -> Site:
    row = _there(rows.get(ctx.tx))
    names = ("incarnation", "contact", "hosted_machine_limit", "private_targets", "created_at")
    return Site(**{name: row[name] for name in names})


def change(
    ctx: Context, contact: str | None, hosted_machine_limit: int | None, private_targets: Sequence[str] | None = None
) -> Site:
    """Change the settings that are given. Errors: `INVALID_REQUEST`."""
    before = _there(rows.lock(ctx.tx))
    wanted: dict[str, str | int | list[str]] = {}
    if contact is not None:
        wanted["contact"] = org_rules.contact(contact)
    if hosted_machine_limit is not None:
        wanted["hosted_machine_limit"] = clusters.machine_limit(hosted_machine_limit, "hosted_machine_limit")
    if private_targets is not None:
        wanted["private_targets"] = [str(network) for network in targets.networks(private_targets)]
    changed = {name: value for name, value in wanted.items() if before[name] != value}
    if changed:
        rows.change(ctx.tx, **changed)
        ctx.record("site.changed", Subject(), before={name: before[name] for name in changed}, after=changed)
    return show(ctx)


def audit(ctx: Context, want: Filter, before: int | None, limit: int) -> Sequence[Row]:
    """Return the site's own audit entries that match, newest first, below sequence `before`."""
    check_types(want.types, TYPES, "type")
    return journal.newest_first(ctx.tx, None, replace(want, view="audit"), before=before, limit=limit)


def _there(row: Row | None) -> Row:
    if row is None:
        raise Refusal("UNAVAILABLE", "The site is not set up yet. Start it with `corral site serve`.")
    return row


def _new_link(tx: Tx, purpose: str, user_id: str | None) -> str:
    secret = secrets.make(secrets.LINK, os.urandom(secrets.RANDOM_BYTES))
    values = {"purpose": purpose, "user_id": user_id, "expires_at": tx.now + users.OPERATOR_LINK_TTL}
    links.add(tx, new_id(tx.now), secret.hash, values)
    return secret.text
