"""A running site with people, and a command line that acts as one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from corral.main import main
from corral.store.engine import Database
from tests.live_server import Site, live_server
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
