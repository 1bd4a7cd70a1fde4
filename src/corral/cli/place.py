"""Where a command acts: which site, organisation, workspace, cluster.

Named by option, else by environment or `corral login`'s defaults, else the only one there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.client import config
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.api import Corral
    from corral.client.clusters import Cluster
    from corral.client.orgs import Org
    from corral.client.workspaces import Workspace

F = TypeVar("F", bound=Callable[..., Any])

_HELP = {
    "org": "Organisation (short name). Default: CORRAL_ORG, your login's, or the only one.",
    "workspace": "Workspace (short name). Default: CORRAL_WORKSPACE, your login's, or the only one.",
    "cluster": "Cluster (short name). Default: the only one.",
}
_SHORT = {"org": "-o", "workspace": "-w", "cluster": "-c"}


def at(*options: str) -> Callable[[F], F]:
    """Give a command the named options and, as its first argument, the `Place` that they make."""

    def decorate(function: F) -> F:
        def enter(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in options}
            with Place(**given) as place:
                return function(place, *args, **kwargs)

        wrapped: Any = enter
        wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
        wrapped.__click_params__ = getattr(function, "__click_params__", [])
        for name in reversed(options):
            wrapped = click.option(f"--{name}", _SHORT[name], metavar="NAME", help=_HELP[name])(wrapped)
        return wrapped  # type: ignore[no-any-return]  # click's decorators give back what they are given

    return decorate


class Place:
    """Resolves what was not named only when it is needed. A context manager: closes the connection."""

    def __init__(self, org: str | None = None, workspace: str | None = None, cluster: str | None = None) -> None:
        self._org, self._workspace, self._cluster = org, workspace, cluster

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        if "corral" in self.__dict__:
            self.corral.close()

    @cached_property
    def site(self) -> config.Site:
        return config.current()

    @cached_property
    def corral(self) -> Corral:
        from corral.client.api import Corral

        return Corral(site=self.site)

    @cached_property
    def org(self) -> Org:
        name = self._org or self.site.org
        return self.corral.org(name or only("organisation", "--org", (org.slug for org in self.corral.orgs())))

    @cached_property
    def workspace(self) -> Workspace:
        name = self._workspace or self.site.workspace
        return self.org.workspace(name or only("workspace", "--workspace", (w.slug for w in self.org.workspaces())))

    @cached_property
    def cluster(self) -> Cluster:
        return self.org.cluster(self._cluster or only("cluster", "--cluster", (c.slug for c in self.org.clusters())))

    @property
    def names(self) -> tuple[str, str]:
        """Organisation and workspace by short name; the site is asked only for what was not named."""
        return (
            self._org or self.site.org or self.org.name,
            self._workspace or self.site.workspace or self.workspace.name,
        )

    @property
    def cluster_name(self) -> str | None:
        """The cluster as it was named; None when it was not."""
        return self._cluster

    @property
    def workspace_name(self) -> str | None:
        return self._workspace


_NONE = {
    "organisation": "You are in no organisation yet. Ask who runs the site to invite you.",
    "workspace": "You are in no workspace of this organisation. Ask an admin, or make one: corral workspace create.",
    "cluster": "The organisation uses no cluster yet. An admin begins with: corral cluster use-hosted.",
}


def only(what: str, option: str, names: Iterable[str]) -> str:
    """Return the only name. Errors: `CorralError` `NAME_ONE` where there is none, or a choice."""
    found = sorted(names)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CorralError("NAME_ONE", _NONE[what])
    raise CorralError("NAME_ONE", f"There are several: {', '.join(found[:20])}. Name the {what} with {option}.")
