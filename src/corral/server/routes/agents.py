"""The agents' session door: bare Starlette, the rules are in `server/agents.py`."""

from __future__ import annotations

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from corral.server.agents import Hub


async def session(ws: WebSocket) -> None:
    """`WS /api/v1/agent/session`, with the machine's key as a bearer token."""
    hub: Hub = ws.app.state.hub
    await hub.serve(ws)


ROUTES = (WebSocketRoute("/api/v1/agent/session", session),)
