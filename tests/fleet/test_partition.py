"""A machine that is not heard for a minute: Down, its work Out of Sync and running on, and both back by a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from corral.store.engine import Database
from tests.conftest import Clock
from tests.live_server import Monotonic, Site, eventually, live_server
from tests.world import World


@dataclass
class Partitioned:
    """A site whose clock of silence is moved by hand, and one agent process that can be made deaf and dumb."""

    site: Site
    world: World
    clock: Monotonic
    agent: subprocess.Popen[bytes]
    name: str
    _http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.world.tokens['owner']}"}
        self._http = httpx.Client(base_url=f"{self.site.url}/api/v1/orgs/acme", headers=headers)

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self._http.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def machine(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/clusters/default/nodes/{self.name}")["machine"]
        return found

    def dev(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", "/workspaces/research/compute-clusters/dev")
        return found

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def partitioned(sqlite_db: Database, tmp_path: Path) -> Iterator[Partitioned]:
    world = World(sqlite_db, tmp_path / "world", app=FastAPI())
    monotonic = Monotonic()
    with live_server(sqlite_db, monotonic=monotonic) as site:
        headers = {"Authorization": f"Bearer {world.tokens['owner']}"}
        path = f"{site.url}/api/v1/orgs/acme/clusters/default/enrollment-tokens"
        (tmp_path / "token").write_text(httpx.post(path, json={}, headers=headers).json()["token"])
        command = [sys.executable, "-m", "corral.agent.main"]
        state = ["--state", str(tmp_path / "agent")]
        join = [*command, "join", "--url", site.url, "--token-file", str(tmp_path / "token"), *state]
        name = subprocess.run(join, capture_output=True, text=True, check=True).stdout.split()[-1]
        agent = subprocess.Popen([*command, "run", "--driver", "sim", *state], stderr=subprocess.DEVNULL)
        found = Partitioned(site, world, monotonic, agent, name)
        try:
            yield found
        finally:
            found.close()
            agent.send_signal(signal.SIGCONT)
            agent.kill()
            agent.wait()


def test_silence_makes_a_machine_down_and_its_work_out_of_sync_and_a_report_ends_both(
    partitioned: Partitioned, clock: Clock
) -> None:
    one = partitioned
    eventually(lambda: one.machine()["state"] == "up")
    one.call(
        "POST", "/workspaces/research/compute-clusters", {"name": "dev", "vcpu": 1, "ram_gib": 1, "storage_gib": 1}
    )
    eventually(lambda: one.dev()["state"] == "active")
    os.kill(one.agent.pid, signal.SIGSTOP)

    def pass_time(seconds: float) -> None:
        clock.forward(seconds)
        one.clock.forward(seconds)
        one.site.hub.heard.beat()  # the site was there to hear, all that time

    def silent() -> bool:
        pass_time(5)
        return bool(one.machine()["state"] == "down")

    eventually(silent)
    refused = one._http.post("/workspaces/research/compute-clusters", json={"name": "more"})
    assert (refused.status_code, "down" in refused.json()["message"]) == (409, True)

    def out_of_sync() -> bool:
        pass_time(5)
        return bool(one.dev()["state"] == "out_of_sync")

    eventually(out_of_sync)
    dev = one.dev()
    assert dev["wanted"] == f"running on {one.name}"
    assert f"{one.name} is down since" in dev["seen"]

    os.kill(one.agent.pid, signal.SIGCONT)
    eventually(lambda: one.machine()["state"] == "up", 60)
    eventually(lambda: one.dev()["state"] == "active")
    assert (one.machine()["quarantine"], one.dev()["restarts"]) == (None, 0)
