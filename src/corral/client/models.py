"""What the site answers, as frozen dataclasses with the API's field names. Sizes in MiB, times aware datetimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corral.client.decode import View

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class JournalEntry(View):
    """An event or audit entry. `id` is what `follow_events(after=…)` takes; `data` what it tells."""

    seq: int
    at: datetime | None
    type: str
    id: str = ""
    actor: str = ""
    actor_kind: str = ""
    address: str = ""
    request_id: str = ""
    cluster_id: str | None = None
    workspace_id: str | None = None
    machine_id: str | None = None
    workload_id: str | None = None
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClusterInfo(View):
    """A cluster as the organisation uses it, with what it has there. `machine_limit` None: none."""

    id: str
    slug: str
    name: str
    hosted: bool
    machine_limit: int | None = None
    machines: int = 0
    up: int = 0
    down: int = 0
    cordoned: int = 0
    gpus: int = 0
    joined_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class HostedCluster(View):
    id: str
    slug: str
    hosted: bool


@dataclass(frozen=True, kw_only=True)
class JoinToken(View):
    """An unused join token, without its secret."""

    id: str
    public_id: str
    labels: Json
    expires_at: datetime
    created_at: datetime | None = None
    created_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewJoinToken(View):
    """`token` and `install` (the line to run on the machine) are secrets, and come once: None in a replay."""

    id: str
    labels: Json
    expires_at: datetime
    token: str | None = None
    install: str | None = None


@dataclass(frozen=True, kw_only=True)
class OrgInfo(View):
    """An organisation; `role`: yours there (None: you are the site's operator and no member)."""

    id: str
    slug: str
    name: str
    contact: str = ""
    role: str | None = None
    created_at: datetime | None = None
    machine_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Member(View):
    """`role`: owner | admin | member."""

    user_id: str
    login: str
    name: str
    role: str
    joined_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Invitation(View):
    """A live invitation; `login` "": for whoever holds it."""

    id: str
    role: str
    login: str = ""
    by: str = ""
    created_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class NewLink(View):
    """A one-time link, shown once: `link` is what its reader gives to `corral login` (None in a replay)."""

    id: str
    expires_at: datetime
    link: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkspaceInfo(View):
    """A workspace; `part`: yours there, lead | member (None: you are an admin and not in it)."""

    id: str
    slug: str
    name: str
    part: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class WorkspaceMember(View):
    user_id: str
    login: str
    name: str
    part: str
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Quota(View):
    """The most that a workspace's live work may hold of a cluster, and GPU-hours a UTC month. None: no limit."""

    gpus: int | None = None
    gpu_models: dict[str, int] = field(default_factory=dict)
    vcpu: int | None = None
    ram_gib: int | None = None
    storage_gib: int | None = None
    gpu_hours_month: int | None = None


@dataclass(frozen=True, kw_only=True)
class QuotaUse(View):
    """What counts against a quota. `gpu_hours_kept`: with what live work may still use of this month."""

    gpus: int = 0
    gpu_models: dict[str, int] = field(default_factory=dict)
    vcpu: int = 0
    ram_gib: int = 0
    storage_gib: int = 0
    gpu_hours_month: float = 0
    gpu_hours_kept: float = 0


@dataclass(frozen=True, kw_only=True)
class Access(View):
    """What a workspace may use of a cluster, and what is used of its quota; pool `*`: every machine."""

    cluster: str
    pools: list[str]
    quota: Quota
    used: QuotaUse
    hosted: bool = False
    changed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class User(View):
    id: str
    login: str
    name: str
    operator: bool = False


@dataclass(frozen=True, kw_only=True)
class Membership(View):
    slug: str
    name: str
    role: str


@dataclass(frozen=True, kw_only=True)
class SshKey(View):
    id: str
    name: str
    fingerprint: str
    public_key: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Token(View):
    """An API token, without its secret. `login`: logging in made it."""

    id: str
    public_id: str
    name: str
    scopes: list[str]
    login: bool = False
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class NewToken(Token):
    """`token` is the secret, and comes once: None in a replay."""

    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class Me(View):
    """Who you are; `scopes` are those of the token in use."""

    id: str
    login: str
    name: str
    operator: bool = False
    scopes: list[str] = field(default_factory=list)
    orgs: list[Membership] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LoggedIn(View):
    """`token` None: you came with a token and go on with it."""

    user: User
    orgs: list[Membership]
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class SiteSettings(View):
    contact: str
    hosted_machine_limit: int
    private_targets: list[str] = field(default_factory=list)
    incarnation: str = ""
    created_at: datetime | None = None
