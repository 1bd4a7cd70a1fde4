"""The control plane as one ASGI application: routes, and the parts that live as long as it does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute

from corral import __version__
from corral.controllers.alerts import AlertFollower
from corral.controllers.batches import Batches
from corral.controllers.budgets import Budgets
from corral.controllers.deliveries import Deliveries
from corral.controllers.heard import Heard
from corral.controllers.last_used import LastUsedWriter
from corral.controllers.lease import Lease, stop_process
from corral.controllers.liveness import Liveness
from corral.controllers.placement import PlacementWorker
from corral.controllers.reservations import Reservations
from corral.controllers.retention import Retention
from corral.controllers.updates import Updates
from corral.domain.permissions import ROUTES
from corral.server import errors, openapi
from corral.server.agents import Hub
from corral.server.artefact import ArtefactStore
from corral.server.config import Config
from corral.server.live import Live
from corral.server.messages import Messages
from corral.server.middleware import BodyLimit, RequestIds
from corral.server.outbound import Outbound
from corral.server.places import Places
from corral.server.routes import ROUTERS, bare_routes
from corral.server.routes.join_tokens import public_url
from corral.server.sealing import SiteKey
from corral.server.tunnel import Streams
from corral.store.engine import Database
from corral.usecases.attempts import Attempts
from corral.usecases.break_glass import Traces
from corral.usecases.denials import Denials
from corral.usecases.tokens import LastUsed

EXPLAINS_OF_A_USER = 4
"""At once: each takes a turn of the one thread that places everybody's work."""
EXPORTS_OF_A_USER = 2
"""At once: each may read the whole journal of an organisation."""
USAGE_OF_A_USER = 2
"""At once: each sums up all that lived in its period."""
CLEARINGS_OF_A_USER = 16
"""At once: each waits for a machine."""


def create_app(
    config: Config,
    db: Database,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    artefact: ArtefactStore | None = None,
) -> FastAPI:
    """Return the application on a migrated database. Raises when a route is missing from the permission table.

    Silence of machines is judged by `monotonic` (seconds). `artefact`: the agent to serve (None: this release's).
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            for part in _parts(app, monotonic):
                await part.start()
                running.push_async_callback(part.stop)
            yield

    app = FastAPI(
        title="Corral",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # openapi.install serves it
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(RequestIds), Middleware(BodyLimit)],
    )
    app.state.artefact = artefact or ArtefactStore(config.state_dir / "artefact")
    _remember(app.state, config, db)
    errors.install(app)
    for router in ROUTERS:
        # Not include_router: it hides the routes behind one that has no path to look a rule up by.
        app.router.routes.extend(router.routes)
    app.router.routes.extend(bare_routes())
    openapi.install(app)
    _check_rules(app)
    return app


def _remember(state: State, config: Config, db: Database) -> None:
    """Give the application what its routes share, in memory, whether or not its parts run."""
    state.config = config
    state.db = db
    state.last_used = LastUsed(db)
    state.attempts = Attempts()
    state.denials = Denials()
    state.traces = Traces()
    state.explaining = Places(EXPLAINS_OF_A_USER, "questions where something would go")
    state.exporting = Places(EXPORTS_OF_A_USER, "exports")
    state.metering = Places(USAGE_OF_A_USER, "questions about usage")
    state.clearing = Places(CLEARINGS_OF_A_USER, "GPU faults that are being cleared")
    state.seal = SiteKey(config.state_dir)
    state.outbound = Outbound(state.seal, Messages())
    state.on_lease_lost = stop_process


class Part(Protocol):
    """Something that lives as long as the application; started in order, stopped in reverse."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _parts(app: FastAPI, monotonic: Callable[[], float]) -> Iterator[Part]:
    """Make each part when the one before it has started."""
    state = app.state
    yield Lease(state.db, state.on_lease_lost)
    state.batches = Batches(state.db)
    yield state.batches
    heard = Heard(monotonic)
    state.hub = Hub(state.db, state.batches, heard, state.config, state.artefact)
    yield state.hub
    state.streams = Streams(state.db, state.hub)
    yield state.streams
    state.liveness = Liveness(state.db, heard, state.config.every_s, state.hub.hear_again)
    yield state.liveness
    yield LastUsedWriter(state.last_used)
    yield Reservations(state.db, state.config.every_s)
    yield Updates(state.db, state.config.every_s, state.artefact.release)
    yield Budgets(state.db)
    yield Retention(state.db)
    state.deliveries = Deliveries(state.db, state.outbound)
    yield state.deliveries
    yield AlertFollower(state.db, lambda: public_url(state), state.deliveries.wake)
    state.live = Live(state.db)
    yield state.live
    state.placer = PlacementWorker(state.db, heard.settled)
    yield state.placer


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield (method or "WS", template) of every route."""
    for route in app.router.routes:
        yield from _names(route)


def _names(route: BaseRoute) -> Iterator[tuple[str, str]]:
    if isinstance(route, (APIRoute, Route)):
        for method in (route.methods or set()) - {"HEAD", "OPTIONS"}:
            yield method, route.path
    elif isinstance(route, WebSocketRoute):
        yield "WS", route.path
    else:
        yield "WS", getattr(route, "path", repr(route))


def _check_rules(app: FastAPI) -> None:
    missing = sorted(f"{method} {path}" for method, path in routes_of(app) if (method, path) not in ROUTES)
    if missing:
        raise RuntimeError(f"no permission rule for: {', '.join(missing)}; add them to domain/permissions.py")
