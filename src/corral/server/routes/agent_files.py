"""What a machine downloads to join: `install.sh` and the agent's artefact. Static bytes: nothing is ever pasted in."""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from corral.domain.errors import not_found
from corral.server.artefact import ARTEFACT_FOLDER, PYZ, SUMS, ArtefactStore

INSTALL = "/api/v1/install.sh"
ARTEFACT = ARTEFACT_FOLDER + "/{file}"


@cache
def install_script() -> bytes:
    return resources.files("corral.agent").joinpath("install.sh").read_bytes()


def routes() -> list[Route]:
    """Return the routes; the artefact is made when one of them is first asked for it."""
    return [Route(INSTALL, _install, methods=["GET"]), Route(ARTEFACT, _artefact, methods=["GET"])]


async def _install(request: Request) -> Response:
    return Response(install_script(), media_type="text/x-shellscript", headers={"Cache-Control": "no-cache"})


async def _artefact(request: Request) -> Response:
    file = request.path_params["file"]
    if file not in (PYZ, SUMS):
        raise not_found()
    store: ArtefactStore = request.app.state.artefact
    made = await run_in_threadpool(store.get)
    kind = "application/octet-stream" if file == PYZ else "text/plain"
    return FileResponse(made.pyz if file == PYZ else made.sums, media_type=kind, headers={"Cache-Control": "no-cache"})
