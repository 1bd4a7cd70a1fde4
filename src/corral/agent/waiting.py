"""Waiting with a bound that a cancel always gets through.

`asyncio.wait_for` returns a result that is there already instead of being cancelled (Python before
3.12); a loop that uses it may then never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def set_or_after(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set; after `seconds` it is set here."""
    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()


async def bounded(work: Awaitable[T], seconds: float) -> T:
    """Return what `work` returns. Errors: `asyncio.TimeoutError` after `seconds`; the work is cancelled then."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def cancelled(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks and wait until they have ended, however they end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
