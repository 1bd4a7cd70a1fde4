"""What a use case is given: the transaction, who acts, and where.

`ctx.now` is the database's time; `ctx.new_id()` the only maker of ids.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from corral.domain.errors import Refusal
from corral.domain.events import Entry, Subject
from corral.domain.ids import uuid7
from corral.domain.permissions import Part, Role
from corral.store.transaction import Actor, Scope, Tx, Wake

T = TypeVar("T")


@dataclass(frozen=True)
class User:
    id: str
    login: str
    name: str
    operator: bool


@dataclass(frozen=True)
class Org:
    id: str
    slug: str
    name: str
    contact: str


@dataclass(frozen=True)
class Workspace:
    id: str
    org_id: str
    slug: str
    name: str


@dataclass(frozen=True)
class Context:
    """One act of one person (or of the site itself: `user` None) in one transaction."""

    tx: Tx
    actor: Actor
    user_or_none: User | None = None
    org_or_none: Org | None = None
    role: Role | None = None
    workspace_or_none: Workspace | None = None
    part: Part | None = None
    token_id: str = ""
    """The API token they act with."""
    scopes: frozenset[str] = frozenset()
    """What that token may be used for."""
    look: str = ""
    """The break-glass look under which an operator reads as an admin would ("": none)."""

    @property
    def now(self) -> datetime:
        return self.tx.now

    @property
    def user(self) -> User:
        return _there(self.user_or_none)

    @property
    def org(self) -> Org:
        return _there(self.org_or_none)

    @property
    def workspace(self) -> Workspace:
        return _there(self.workspace_or_none)

    @property
    def scope(self) -> Scope:
        """The organisation whose rows this act may touch."""
        return Scope(self.org.id)

    @property
    def admin(self) -> bool:
        return self.role in (Role.OWNER, Role.ADMIN)

    def new_id(self) -> str:
        return new_id(self.now)

    def record(self, type: str, subject: Subject, **data: Any) -> None:
        """Write a journal entry in this transaction."""
        self.tx.record(Entry(type, subject, data), self.actor)

    def record_for_both(self, type: str, subject: Subject, **data: Any) -> None:
        """Write what the operator does to an organisation into its journal and into the site's own, naming it there."""
        self.record(type, subject, **data)
        self.record(type, Subject(), org=self.org.slug, **data)

    def wake(self, wake: Wake, id: str) -> None:
        self.tx.wake(wake, id)


def new_id(now: datetime) -> str:
    return uuid7(now, os.urandom(10))


def _there(value: T | None) -> T:
    # The door resolves what the route's path names before a use case runs.
    if value is None:
        raise Refusal("INTERNAL", "This act needs an organisation or workspace that its route does not name.")
    return value
