"""When a container that is gone is started again: at once; when it goes again soon, later and later."""

from __future__ import annotations

from collections.abc import Callable

from corral.agent.backoff import Doubling
from corral.agent.drivers.base import Running

STEADY_S = 600.0
"""A container that ran so long restarts at once."""


class Restarts:
    """`now`: the boot clock. `first_s`, `cap_s`: of the waits."""

    def __init__(self, now: Callable[[], float], first_s: float, cap_s: float) -> None:
        self._now = now
        self._waits = Doubling(first_s, cap_s)
        self._not_before = float("-inf")
        self.up_since = float("-inf")
        """When its container was last known to have been started."""

    def started(self) -> None:
        self.up_since = self._now()

    def gone(self) -> None:
        """Its container is not there any more."""
        now = self._now()
        if now - self.up_since >= STEADY_S and self._waits.tries:
            self._waits.reset()
        delay = self._waits.next()
        self._not_before = now + (0.0 if self._waits.tries == 1 else delay)

    def wait_s(self) -> float:
        """Return the seconds until it may be started; 0 or less: now."""
        return self._not_before - self._now()


def what_happened(seen: Running | None, oom_kills: int) -> str:
    """Return, for people, what became of a container that is looked for. `seen`: what the runtime shows of it."""
    if seen is None:
        what = "its container is not there any more"
    elif seen.exit_code is None:
        what = "its container does not run any more"
    else:
        what = f"its container ended with exit code {seen.exit_code}"
    memory = "; processes in it were killed for lack of memory" if oom_kills else ""
    return f"{what}{memory}; it is started again on the same storage"
