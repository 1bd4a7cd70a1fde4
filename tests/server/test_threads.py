"""Threads that connections borrow: one asker's many jobs stand before nobody else's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from corral.domain.errors import Refusal
from corral.server import threads
from corral.server.threads import Threads
from tests.live_server import DEADLINE_S


def test_one_who_asks_much_stands_before_nobody_else() -> None:
    async def ask() -> None:
        pool, go_on = Threads(2, 1), threading.Event()
        many = [asyncio.ensure_future(pool.run_for("ann", lambda: go_on.wait(DEADLINE_S))) for _ in range(20)]
        try:
            async with asyncio.timeout(DEADLINE_S / 2):
                assert await pool.run_for("bob", lambda: "answer") == "answer"
        finally:
            go_on.set()
        assert await asyncio.gather(*many) == [True] * 20
        assert not pool._lines

    asyncio.run(ask())


def test_a_line_that_is_full_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IN_LINE", 3)

    async def ask() -> None:
        pool, go_on = Threads(2, 1), threading.Event()
        many = [asyncio.ensure_future(pool.run_for("ann", lambda: go_on.wait(DEADLINE_S))) for _ in range(3)]
        await asyncio.sleep(0)  # each stands in line now
        try:
            with pytest.raises(Refusal) as caught:
                await pool.run_for("ann", lambda: True)
        finally:
            go_on.set()
        assert caught.value.code == "RATE_LIMITED"
        assert await asyncio.gather(*many) == [True] * 3
        assert await pool.run_for("ann", lambda: True)

    asyncio.run(ask())
