"""Delivers the clearing of a GPU's fault to its machine, and brings the answer (spec 10, "GPU faults").

Asked by a request, answered on the machine's session; nothing is stored here, so a control plane that
dies in between leaves the fault as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.websockets import WebSocketDisconnect

from corral.domain.errors import Refusal
from corral.domain.faults import Acknowledged
from corral.protocol import gpu_faults as wire_faults
from corral.server import agent_codec as codec
from corral.usecases.faults import Answered, ToClear

if TYPE_CHECKING:
    from corral.server.agent_session import Session

WITHIN_S = 10.0


@dataclass(frozen=True)
class _Waiting:
    session: Session
    future: asyncio.Future[Acknowledged]


class Clearing:
    """The asks that wait. Lives on the loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    async def ask(self, session: Session | None, what: ToClear) -> Answered:
        """Ask a machine; return its answer. Errors: `NODE_NOT_CONNECTED`, also when it does not answer in time."""
        if session is None:
            raise _not_connected()
        ask, future = secrets.token_hex(8), asyncio.get_running_loop().create_future()
        self._waiting[ask] = _Waiting(session, future)
        try:
            async with asyncio.timeout(WITHIN_S):
                await session.send("clear_fault", wire_faults.ClearFault(ask, what.gpu.vendor, what.gpu.uuid))
                return Answered(what, await future, session.opened.epoch)
        except TimeoutError:
            raise Refusal(
                "NODE_NOT_CONNECTED",
                f"The machine did not answer within {WITHIN_S:.0f} s, and nothing was changed. Its agent may be older "
                "than this, or its GPU driver may hang: look at the machine's conditions, then try again.",
            ) from None
        except (RuntimeError, WebSocketDisconnect):
            raise _not_connected() from None
        finally:
            del self._waiting[ask]

    def answered(self, session: Session, said: wire_faults.FaultCleared) -> bool:
        """Take an answer, and return whether it is one; what this session was not asked for says nothing."""
        waiting = self._waiting.get(said.ask)
        if waiting is None or waiting.session is not session or waiting.future.done():
            return False
        waiting.future.set_result(codec.fault_cleared(said))
        return True

    def ended(self, session: Session) -> None:
        """Whoever waits for this session waits no longer."""
        for waiting in self._waiting.values():
            if waiting.session is session:
                with contextlib.suppress(asyncio.InvalidStateError):
                    waiting.future.set_exception(_not_connected())


def _not_connected() -> Refusal:
    return Refusal(
        "NODE_NOT_CONNECTED",
        "The machine has no open session, and clearing a fault has to be delivered to it. Nothing was changed: "
        "try again when it is connected.",
    )
