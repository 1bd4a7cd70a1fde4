"""A report fits into a frame (spec 40, "Reporting"): what containers said must never keep their ends from being heard.

The site takes frames of 1 MiB and closes a session that sends more; a tenant decides what their
container says. So log lines and tails share a budget, and all else a report says comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from corral.protocol.codec import to_plain
from corral.protocol.messages import AllocationReport, DesiredAllocation, LogLine

TEXT_BYTES = 384 * 1024
"""Of all log lines and tails in one report, as they are encoded. The rest of a full machine is well below as much."""

WORK_BYTES = 512 * 1024
"""Of all work that is described in one frame."""


def fitted(reports: Iterable[AllocationReport], budget: int = TEXT_BYTES) -> tuple[AllocationReport, ...]:
    """Cut log lines and tails to `budget` bytes, an even share for each allocation that says something.

    The oldest lines stay: those left out come with a later report. Of a tail its end stays.
    """
    whole = tuple(reports)
    talking = sum(1 for one in whole if one.log or one.log_tail)
    return tuple(_cut(one, budget // talking) if one.log or one.log_tail else one for one in whole)


def first_that_fit(wants: Iterable[DesiredAllocation], budget: int = WORK_BYTES) -> tuple[DesiredAllocation, ...]:
    """Return as many from the first on as `budget` bytes hold, encoded; one at least. The rest is asked for again."""
    fit: list[DesiredAllocation] = []
    for want in wants:
        budget -= len(json.dumps(to_plain(want), ensure_ascii=False).encode(errors="surrogatepass"))
        if budget < 0 and fit:
            break
        fit.append(want)
    return tuple(fit)


def _cut(report: AllocationReport, share: int) -> AllocationReport:
    log: list[LogLine] = []
    for line in report.log:
        size = _size(line.text)
        if size > share and log:
            break
        log.append(line if size <= share else replace(line, text=_beginning(line.text, share)))
        share = max(0, share - size)
    return replace(report, log=tuple(log), log_tail=_end(report.log_tail, share))


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")) - 2


def _beginning(text: str, limit: int) -> str:
    return _end(text[::-1], limit)[::-1]


def _end(text: str, limit: int) -> str:
    text = text[-limit:] if limit else ""
    while (over := _size(text) - limit) > 0:
        text = text[max(1, over // 6) :]  # one character takes 6 bytes at most
    return text
