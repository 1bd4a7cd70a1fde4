"""How to reach a compute cluster: its pin, the caller's keys, and why ssh would not work now."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from corral.server.door import AtDoor
from corral.usecases import connections

router = APIRouter()


class ConnectionView(BaseModel):
    """`ssh`: ready | no key | not active | machine unreachable; `why` says what to do when it is not ready."""

    name: str
    workload_id: str
    machine: str | None
    ssh: str
    why: str
    user: str
    host_alias: str
    host_key: str
    fingerprints: list[str]


@router.get("/api/v1/orgs/{org}/workspaces/{ws}/compute-clusters/{name}/connection")
def show_connection(request: Request, org: str, ws: str, name: str, door: AtDoor) -> ConnectionView:
    """Say how to connect to a compute cluster by ssh, and whether it can work now."""
    with door.read() as ctx:
        found = connections.show(ctx, name)
    ssh, why = found.ssh, found.why
    if ssh == "ready" and not request.app.state.hub.connected(found.machine_id):
        ssh = "machine unreachable"
        why = f"The machine {found.machine} is not connected to the control plane now. Your work there goes on."
    return ConnectionView(
        name=found.name,
        workload_id=found.workload_id,
        machine=found.machine,
        ssh=ssh,
        why=why,
        user="root",
        host_alias=f"corral-{found.workload_id}",
        host_key=found.host_key,
        fingerprints=list(found.fingerprints),
    )
