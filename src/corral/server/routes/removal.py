"""The door of removing a machine (spec 10, "Remove a machine")."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from corral.domain.machines import MachineState
from corral.server.agents import Hub
from corral.server.bodies import DryRun
from corral.server.door import AtDoor
from corral.server.install_line import uninstall_line
from corral.server.machine_views import Affected, RunningView
from corral.server.routes.join_tokens import public_url
from corral.usecases import removal as use

router = APIRouter()


class RemovalView(Affected):
    """What removing the machine did, or with `dry_run` would do by force; workloads as `workspace/name`.

    `stopped` is all that runs there: of it `placed_again` waits for another machine, `lost` has ended. While `state`
    is down it may run until the machine is heard of again. `uninstall`: of a machine that is online, the line that
    takes the agent off, to run there as root.
    """

    state: MachineState
    stopped: list[str]
    placed_again: list[str]
    lost: list[str]
    uninstall: str | None


@router.delete("/api/v1/orgs/{org}/clusters/{cluster}/nodes/{node}")
def remove_machine(
    org: str,
    cluster: str,
    node: str,
    door: AtDoor,
    request: Request,
    force: Annotated[
        bool, Query(description="Also while work runs there: it stops, as its restart policy says.")
    ] = False,
    dry_run: DryRun = False,
) -> RemovalView:
    """Remove a machine for ever: its credential dies at once, its open connections with it."""
    if dry_run:
        with door.read() as ctx:
            told = use.preview(ctx, cluster, node)
        return _view(told, _uninstall(request, told), dry_run=True)
    with door.write() as ctx:
        told = use.remove(ctx, cluster, node, force=force)
        uninstall = _uninstall(request, told)  # before the commit, which ends its session
    return _view(told, uninstall, dry_run=False)


def _uninstall(request: Request, told: use.Removal) -> str | None:
    state = request.app.state
    hub: Hub | None = getattr(state, "hub", None)  # there while the application runs
    if hub is None or not hub.connected(told.machine.id):
        return None
    return uninstall_line(public_url(state), getattr(state, "ca_pem", None))


def _view(told: use.Removal, uninstall: str | None, *, dry_run: bool) -> RemovalView:
    return RemovalView(
        name=told.machine.name,
        dry_run=dry_run,
        running=[RunningView(**vars(work)) for work in told.affected.running],
        workspaces=list(told.affected.workspaces.named),
        workspaces_left_out=told.affected.workspaces.left_out,
        state=told.state,
        stopped=told.stopped,
        placed_again=list(told.placed_again),
        lost=list(told.lost),
        uninstall=uninstall,
    )
