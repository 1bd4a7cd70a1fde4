"""Calls of Podman's service: not doubled, not behind one another, and a dead or a hung service is noticed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corral.agent.drivers import podman_service
from corral.agent.drivers.base import RuntimeUnavailable
from corral.agent.drivers.podman_service import PodmanService
from tests.live_server import eventually
from tests.podman import Box

pytestmark = pytest.mark.podman


@pytest.fixture
def service(new_box: Callable[..., Box]) -> PodmanService:
    service = new_box().driver()._service
    service.ensure()
    return service


def test_calls_in_a_row_are_not_doubled_by_pings(service: PodmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_service, "HEARD_S", 60.0)
    asked: list[str] = []
    exchange = service._exchange

    def noted(method: str, target: str, *rest: Any) -> Any:
        asked.append(target)
        return exchange(method, target, *rest)

    monkeypatch.setattr(service, "_exchange", noted)
    for _ in range(5):
        assert service.call("GET", "/containers/json").ok
    assert len(asked) <= 6


def test_a_call_does_not_wait_for_another_threads_look_at_the_service(service: PodmanService) -> None:
    service._heard = podman_service.NEVER
    with ThreadPoolExecutor(1) as pool, service._lock:
        answer = pool.submit(service.call, "GET", "/containers/json").result(10)
    assert answer.ok


def test_a_killed_service_is_noticed_though_it_answered_just_now(service: PodmanService) -> None:
    assert service.call("GET", "/containers/json").ok
    first = service.pid()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert service.call("GET", "/containers/json").ok
    assert service.pid() != first


def have_stopped(pid: int) -> bool:
    """Return whether all threads of a process stand still: the signal reaches them one by one."""
    threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(text.rpartition(")")[2].split()[0] == "T" for text in threads)


def test_a_hung_service_is_a_condition_of_the_machine(service: PodmanService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_service, "START_DEADLINE_S", 0.5)
    monkeypatch.setattr(podman_service, "PING_TIMEOUT_S", 0.2)
    pid = service.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: have_stopped(pid))
        service._heard = podman_service.NEVER
        with pytest.raises(RuntimeUnavailable, match="does not answer"):
            service.call("GET", "/containers/json")
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()  # it may take its time to go on
    assert service.call("GET", "/containers/json").ok


def test_many_threads_start_one_service(new_box: Callable[..., Box]) -> None:
    service = new_box().driver()._service
    together = threading.Barrier(8)

    def call(_: int) -> bool:
        together.wait(10)
        return service.call("GET", "/containers/json").ok

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))
    assert service.pid() is not None
