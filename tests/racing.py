"""Two acts in one organisation at once, in a known order: the second waits for the first one's lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import text

from corral.domain.errors import Refusal
from corral.usecases import orgs
from corral.usecases.context import Context
from tests.world import World

T = TypeVar("T")

WAITS = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


def while_locked(world: World, who: str, first: Callable[[Context], object], second: Callable[[], T]) -> T:
    """Begin `second` while `who` holds acme's lock, then do `first` and commit; return what `second` came to.

    SQLite has one writer: there `second` waits for its turn anyhow.
    """
    with ThreadPoolExecutor(1) as pool:
        with world.act(who, org="acme") as ctx:
            orgs.locked(ctx)
            waiting, deadline = pool.submit(second), time.monotonic() + 20
            while not world.db.is_sqlite and not _anybody_waits(world):
                assert time.monotonic() < deadline and not waiting.done()
                time.sleep(0.01)
            first(ctx)
        return waiting.result(20)


def _anybody_waits(world: World) -> bool:
    with world.db.read() as tx:
        return bool(tx.scalar(WAITS))


def outcome(act: Callable[[], object]) -> str:
    """Return "done", or the code of the refusal."""
    try:
        act()
    except Refusal as refusal:
        return refusal.code
    return "done"
