"""Who may do what: the one table (spec 05). Every route is in it; none works without its row.

The server looks a request's rule up by method and route template, resolves the
organisation and workspace named in the path, and refuses before any use case runs:
a stranger gets 404, a role that may not gets 403. `scope` is what an API token needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto


class Role(str, Enum):
    """A person's role in an organisation."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"


class Part(str, Enum):
    """A person's part in a workspace."""

    LEAD = "lead"
    MEMBER = "member"


class Who(Flag):
    """Whom a route lets in. `MEMBER` means any member of the organisation, `WORKSPACE` one of that workspace."""

    PUBLIC = auto()  # no login: joining, install.sh, health
    MACHINE = auto()  # a machine's credential
    SELF = auto()  # anybody logged in, about themselves
    OPERATOR = auto()
    OWNER = auto()
    ADMIN = auto()
    MEMBER = auto()
    WORKSPACE = auto()


_ADMINS = Who.OWNER | Who.ADMIN
_ALL = _ADMINS | Who.MEMBER
_TEAM = _ADMINS | Who.WORKSPACE

SCOPES: Mapping[str, str] = {
    "all": "everything its owner may do",
    "org:read": "read organisations, members, workspaces, events, audit",
    "org:write": "change organisations, members, workspaces, access",
    "machines:read": "read clusters and machines",
    "machines:write": "change clusters and machines, make join tokens",
    "compute:read": "read compute clusters",
    "compute:write": "create, change and terminate compute clusters",
    "compute:connect": "open ssh, ports and logs of compute clusters",
    "me": "the owner's own keys, tokens and sessions",
    "site": "run the site",
}


@dataclass(frozen=True)
class Rule:
    who: Who
    scope: str = ""
    """The scope an API token needs; "" only where nobody logs in."""
    look: str = ""
    """The route (method and template) where an operator may read under break-glass; "" where they may not."""


_ORG = "/api/v1/orgs/{org}"
_WS = _ORG + "/workspaces/{ws}"
_CLUSTER = _ORG + "/clusters/{cluster}"
_NODE = _CLUSTER + "/nodes/{node}"
_COMPUTE = _WS + "/compute-clusters"
_ONE = _COMPUTE + "/{name}"

_ROUTES: Mapping[tuple[str, str], Rule] = {
    # doors without a login
    ("GET", "/healthz"): Rule(Who.PUBLIC),
    ("GET", "/readyz"): Rule(Who.PUBLIC),
    ("GET", "/api/v1/version"): Rule(Who.PUBLIC),
    ("GET", "/api/v1/ca.pem"): Rule(Who.PUBLIC),
    ("GET", "/api/v1/openapi.json"): Rule(Who.PUBLIC),
    ("GET", "/api/v1/install.sh"): Rule(Who.PUBLIC),
    ("GET", "/api/v1/agent/artefact/{file}"): Rule(Who.PUBLIC),
    ("POST", "/api/v1/login"): Rule(Who.PUBLIC),
    ("POST", "/api/v1/login/link"): Rule(Who.PUBLIC),
    ("GET", "/login"): Rule(Who.PUBLIC),
    # machines' own doors
    ("POST", "/api/v1/agent/join"): Rule(Who.PUBLIC),
    ("WS", "/api/v1/agent/session"): Rule(Who.MACHINE),
    ("WS", "/api/v1/agent/streams/{stream}"): Rule(Who.MACHINE),
    # the site
    ("GET", "/api/v1/site"): Rule(Who.OPERATOR, "site"),
    ("PATCH", "/api/v1/site"): Rule(Who.OPERATOR, "site"),
    ("GET", "/api/v1/site/audit"): Rule(Who.OPERATOR, "site"),
    ("GET", "/api/v1/orgs"): Rule(Who.SELF, "org:read"),
    ("POST", "/api/v1/orgs"): Rule(Who.OPERATOR, "site"),
    ("DELETE", _ORG): Rule(Who.OPERATOR, "site"),
    ("POST", _ORG + "/owner-invitations"): Rule(Who.OPERATOR, "site"),
    ("PUT", _ORG + "/machine-limit"): Rule(Who.OPERATOR, "site"),
    ("GET", "/api/v1/site/clusters"): Rule(Who.OPERATOR, "site"),
    ("DELETE", "/api/v1/site/clusters/{id}"): Rule(Who.OPERATOR, "site"),
    ("GET", "/api/v1/site/cluster-requests"): Rule(Who.OPERATOR, "site"),
    ("POST", "/api/v1/site/cluster-requests/{id}/answer"): Rule(Who.OPERATOR, "site"),
    ("GET", "/api/v1/site/prices"): Rule(Who.OPERATOR, "site"),
    ("PUT", "/api/v1/site/prices"): Rule(Who.OPERATOR, "site"),
    # break-glass: the operator's look into a tenant, and its trace
    ("POST", _ORG + "/break-glass"): Rule(Who.OPERATOR, "site"),
    ("GET", _ORG + "/break-glass"): Rule(_ADMINS | Who.OPERATOR, "org:read"),
    ("DELETE", _ORG + "/break-glass/{id}"): Rule(Who.OWNER | Who.OPERATOR, "org:write"),
    # organisations and people
    ("GET", _ORG): Rule(_ALL, "org:read"),
    ("PATCH", _ORG): Rule(Who.OWNER, "org:write"),
    ("GET", _ORG + "/members"): Rule(_ALL, "org:read"),
    ("PATCH", _ORG + "/members/{user}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _ORG + "/members/{user}"): Rule(_ADMINS, "org:write"),
    ("POST", _ORG + "/members/{user}/login-links"): Rule(Who.OWNER, "org:write"),
    ("GET", _ORG + "/invitations"): Rule(_ALL, "org:read"),
    ("POST", _ORG + "/invitations"): Rule(Who.OWNER, "org:write"),
    ("DELETE", _ORG + "/invitations/{id}"): Rule(Who.OWNER, "org:write"),
    ("GET", _ORG + "/workspaces"): Rule(_ALL, "org:read"),
    ("POST", _ORG + "/workspaces"): Rule(_ADMINS, "org:write"),
    ("GET", _WS): Rule(_TEAM, "org:read"),
    ("PATCH", _WS): Rule(_ADMINS, "org:write"),
    ("DELETE", _WS): Rule(_ADMINS, "org:write"),
    ("GET", _WS + "/members"): Rule(_TEAM, "org:read"),
    ("PUT", _WS + "/members/{user}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _WS + "/members/{user}"): Rule(_ADMINS, "org:write"),
    ("GET", _WS + "/access"): Rule(_TEAM, "org:read"),
    ("PUT", _WS + "/access/{cluster}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _WS + "/access/{cluster}"): Rule(_ADMINS, "org:write"),
    # clusters and joining
    ("POST", _ORG + "/hosted-cluster"): Rule(_ADMINS, "machines:write"),
    ("GET", _ORG + "/clusters"): Rule(_ALL, "machines:read"),
    ("POST", _ORG + "/dedicated-clusters"): Rule(Who.OPERATOR, "site"),
    ("GET", _CLUSTER): Rule(_ALL, "machines:read"),
    ("PATCH", _CLUSTER): Rule(_ADMINS, "machines:write"),
    ("DELETE", _CLUSTER): Rule(_ADMINS, "machines:write"),
    ("GET", _ORG + "/cluster-requests"): Rule(_ADMINS, "machines:read"),
    ("POST", _ORG + "/cluster-requests"): Rule(_ADMINS, "machines:write"),
    ("DELETE", _ORG + "/cluster-requests/{id}"): Rule(_ADMINS, "machines:write"),
    ("GET", _CLUSTER + "/enrollment-tokens"): Rule(_ADMINS, "machines:read"),
    ("POST", _CLUSTER + "/enrollment-tokens"): Rule(_ADMINS, "machines:write"),
    ("DELETE", _CLUSTER + "/enrollment-tokens/{id}"): Rule(_ADMINS, "machines:write"),
    ("POST", _WS + "/enrollment-tokens"): Rule(_ADMINS, "machines:write"),
    # machines
    ("GET", _CLUSTER + "/nodes"): Rule(_ADMINS, "machines:read"),
    ("GET", _NODE): Rule(_ADMINS, "machines:read"),
    ("POST", _NODE + "/cordon"): Rule(_ADMINS, "machines:write"),
    ("POST", _NODE + "/uncordon"): Rule(_ADMINS, "machines:write"),
    ("POST", _NODE + "/release-quarantine"): Rule(_ADMINS, "machines:write"),
    ("DELETE", _NODE): Rule(_ADMINS, "machines:write"),
    ("PUT", _NODE + "/placement"): Rule(_ADMINS, "machines:write"),
    ("PUT", _NODE + "/data-location"): Rule(_ADMINS, "machines:write"),
    ("DELETE", _NODE + "/data-location"): Rule(_ADMINS, "machines:write"),
    ("POST", _NODE + "/update"): Rule(_ADMINS, "machines:write"),
    ("POST", _NODE + "/gpus/{gpu}/clear-fault"): Rule(_ADMINS, "machines:write"),
    ("GET", _CLUSTER + "/gpu-faults"): Rule(_ADMINS, "machines:read"),
    ("GET", _CLUSTER + "/update-agents"): Rule(_ADMINS, "machines:read"),
    ("POST", _CLUSTER + "/update-agents"): Rule(_ADMINS, "machines:write"),
    ("DELETE", _CLUSTER + "/update-agents"): Rule(_ADMINS, "machines:write"),
    ("GET", _CLUSTER + "/reservations"): Rule(_ALL, "machines:read"),
    ("POST", _CLUSTER + "/reservations"): Rule(_ADMINS, "machines:write"),
    ("GET", _CLUSTER + "/reservations/{id}"): Rule(_ALL, "machines:read"),
    ("DELETE", _CLUSTER + "/reservations/{id}"): Rule(_ADMINS, "machines:write"),
    # prices, usage, budgets
    ("GET", _CLUSTER + "/prices"): Rule(_ALL, "machines:read"),
    ("PUT", _CLUSTER + "/prices"): Rule(_ADMINS | Who.OPERATOR, "machines:write"),
    ("GET", _ORG + "/usage"): Rule(_ALL, "org:read"),
    ("GET", _ORG + "/budgets"): Rule(_ADMINS, "org:read"),
    ("PUT", _ORG + "/budgets/{ws}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _ORG + "/budgets/{ws}"): Rule(_ADMINS, "org:write"),
    # alerts and webhooks
    ("GET", _ORG + "/alerts"): Rule(_ALL, "org:read"),
    ("GET", _ORG + "/alert-rules"): Rule(_ADMINS, "org:read"),
    ("POST", _ORG + "/alert-rules"): Rule(_ADMINS, "org:write"),
    ("PATCH", _ORG + "/alert-rules/{id}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _ORG + "/alert-rules/{id}"): Rule(_ADMINS, "org:write"),
    ("POST", _ORG + "/alert-rules/{id}/test"): Rule(_ADMINS, "org:write"),
    ("GET", _ORG + "/webhooks"): Rule(_ADMINS, "org:read"),
    ("POST", _ORG + "/webhooks"): Rule(_ADMINS, "org:write"),
    ("PATCH", _ORG + "/webhooks/{id}"): Rule(_ADMINS, "org:write"),
    ("DELETE", _ORG + "/webhooks/{id}"): Rule(_ADMINS, "org:write"),
    ("POST", _ORG + "/webhooks/{id}/test"): Rule(_ADMINS, "org:write"),
    ("GET", _ORG + "/webhooks/{id}/deliveries"): Rule(_ADMINS, "org:read"),
    # a workspace's machines and compute clusters
    ("GET", _WS + "/machines"): Rule(_TEAM, "machines:read"),
    ("GET", _WS + "/gpus"): Rule(_TEAM, "machines:read"),
    ("GET", _WS + "/topology"): Rule(_TEAM, "machines:read"),
    ("GET", _COMPUTE): Rule(_TEAM, "compute:read"),
    ("POST", _COMPUTE): Rule(_TEAM, "compute:write"),
    ("GET", _ONE): Rule(_TEAM, "compute:read"),
    ("DELETE", _ONE): Rule(_TEAM, "compute:write"),
    ("GET", _ONE + "/logs"): Rule(_TEAM, "compute:read"),
    ("GET", _ONE + "/connection"): Rule(_TEAM, "compute:connect"),
    ("GET", _ONE + "/ssh-keys"): Rule(_TEAM, "compute:read"),
    ("PUT", _ONE + "/ssh-keys"): Rule(_TEAM, "compute:write"),
    ("DELETE", _ONE + "/ssh-keys"): Rule(_TEAM, "compute:write"),
    ("WS", _ONE + "/stream"): Rule(_TEAM, "compute:connect"),
    ("POST", _WS + "/placements/explain"): Rule(_TEAM, "compute:read"),
    # the journal
    ("GET", _ORG + "/events"): Rule(_ALL, "org:read"),
    ("GET", _ORG + "/events/stream"): Rule(_ALL, "org:read"),
    ("GET", _ORG + "/events/export"): Rule(_ALL, "org:read"),
    ("GET", _ORG + "/audit"): Rule(_ADMINS, "org:read"),
    ("GET", _ORG + "/audit/export"): Rule(_ADMINS, "org:read"),
    # oneself
    ("GET", "/api/v1/me"): Rule(Who.SELF, "me"),
    ("PATCH", "/api/v1/me"): Rule(Who.SELF, "me"),
    ("PUT", "/api/v1/me/password"): Rule(Who.SELF, "me"),
    ("GET", "/api/v1/me/ssh-keys"): Rule(Who.SELF, "me"),
    ("POST", "/api/v1/me/ssh-keys"): Rule(Who.SELF, "me"),
    ("DELETE", "/api/v1/me/ssh-keys/{id}"): Rule(Who.SELF, "me"),
    ("GET", "/api/v1/me/tokens"): Rule(Who.SELF, "me"),
    ("POST", "/api/v1/me/tokens"): Rule(Who.SELF, "me"),
    ("DELETE", "/api/v1/me/tokens/{id}"): Rule(Who.SELF, "me"),
}

_NEVER_LOOKED_AT = frozenset({_ONE + "/logs", _ONE + "/connection"})
"""What leads into a workload: its output, and how to get in."""


def _with_look(method: str, path: str, rule: Rule) -> Rule:
    """Break-glass opens reading, as an admin of the organisation reads: no change, no stream into a workload."""
    opens = method == "GET" and path.startswith(_ORG) and Who.OPERATOR not in rule.who
    return replace(rule, look=f"{method} {path}") if opens and path not in _NEVER_LOOKED_AT else rule


ROUTES: Mapping[tuple[str, str], Rule] = {key: _with_look(*key, rule) for key, rule in _ROUTES.items()}


def role_bit(role: Role) -> Who:
    return {Role.OWNER: Who.OWNER, Role.ADMIN: Who.ADMIN, Role.MEMBER: Who.MEMBER}[role]


def allows(rule: Rule, role: Role | None, in_workspace: bool, operator: bool) -> bool:
    """Return whether the rule lets in somebody who is logged in."""
    if Who.SELF in rule.who:
        return True
    if operator and Who.OPERATOR in rule.who:
        return True
    if role is None:
        return False
    return role_bit(role) in rule.who or (Who.WORKSPACE in rule.who and in_workspace)


def may_set_role(actor: Role, present: Role, wanted: Role) -> bool:
    """Owners set any role; admins set roles below owner of those below owner."""
    if actor is Role.OWNER:
        return True
    return actor is Role.ADMIN and Role.OWNER not in (present, wanted)


def may_terminate(role: Role, part: Part | None, is_maker: bool) -> bool:
    """A compute cluster is terminated by its maker, a workspace lead, or an admin of the organisation."""
    return role in (Role.OWNER, Role.ADMIN) or part is Part.LEAD or is_maker
