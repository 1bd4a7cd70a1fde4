"""A running site with people, and a command line that acts as one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from corral.main import main
from corral.store.engine import Database
from tests.live_server import Site, eventually, live_server
from tests.world import World


@dataclass
class Ran:
    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@dataclass
class Running:
    """A site that runs, and what the world put into it."""

    site: Site
    world: World


@pytest.fixture
def running(sqlite_db: Database, tmp_path: Path) -> Iterator[Running]:
    world = World(sqlite_db, tmp_path / "world", app=FastAPI())
    with live_server(sqlite_db) as site:
        yield Running(site, world)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `corral` as somebody who never logged in; the configuration stays for the test."""
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_CA", "CORRAL_ORG", "CORRAL_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "config" / "config.json"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def cli(running: Running, nobody: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `corral` as a person of the world: `cli("owner", "org", "list")`."""
    monkeypatch.setenv("CORRAL_URL", running.site.url)

    def run(who: str, *arguments: str) -> Ran:
        monkeypatch.setenv("CORRAL_TOKEN", running.world.tokens[who])
        return nobody(*arguments)

    return run


@contextmanager
def simulated(running: Running, *arguments: str) -> Iterator[None]:
    """Run `corral sim` as an admin of acme while the block runs; all of its machines are up."""
    environment = {**os.environ, "CORRAL_URL": running.site.url, "CORRAL_TOKEN": running.world.tokens["admin"]}
    command = [sys.executable, "-m", "corral", "sim", "--org", "acme", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def fleet(running: Running, cli: Cli) -> Iterator[None]:
    with simulated(running, "--machines", "2", "--gpus", "4", "--pool", "h100"):
        eventually(lambda: _states(cli) == ["up", "up"])
        yield


def _states(cli: Cli) -> list[str]:
    rows: list[dict[str, Any]] = json.loads(cli("admin", "machine", "list", "--json").out)
    return [row["state"] for row in rows]
