"""An allocation's provisioning log: numbered lines, kept until the site has stored them."""

from __future__ import annotations

import itertools
from collections import deque

from corral.agent.inventory.files import printable
from corral.protocol.messages import LogLine

LOG_KEPT, LOG_SENT, LOG_LINE = 500, 100, 1000
"""Lines that are kept, and that a report carries; characters of a line."""


class ProvisioningLog:
    """No number is used twice: `used` is the highest that an agent before this one may have used."""

    def __init__(self, used: int) -> None:
        self._lines: deque[LogLine] = deque(maxlen=LOG_KEPT)
        self._last = used

    def add(self, line: str) -> int:
        """Add a line; return its number."""
        self._last += 1
        self._lines.append(LogLine(self._last, printable(line.rstrip("\n"), LOG_LINE)))
        return self._last

    def to_send(self) -> tuple[LogLine, ...]:
        return tuple(itertools.islice(self._lines, LOG_SENT))

    def seen(self, number: int) -> None:
        """Lines up to `number` are stored at the site."""
        while self._lines and self._lines[0].n <= number:
            self._lines.popleft()
