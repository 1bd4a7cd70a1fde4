"""The agent as one file (spec 40, "Joining"): every Python from 3.10 on, the same bytes, an exact checksum."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import corral
from corral.server import artefact
from corral.server.routes.agent_files import install_script
from tests.world import World

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import corral.agent, corral.protocol, pynvml, websockets.asyncio.client
for package in (corral.agent, corral.protocol):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
outside = [m for m in sys.modules.values() if "site-packages" in (getattr(m, "__file__", None) or "")]
assert not outside, outside
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> artefact.Artefact:
    return artefact.build(tmp_path_factory.mktemp("artefact"))


def python(version: str) -> str:
    """Return an interpreter of that version, or skip, saying so."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        return sys.executable
    known = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = str(known[-1]) if known else f"python{version}"
    try:
        subprocess.run([found, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"Python {version} is not installed here")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_it_runs_on_every_python_from_3_10_on(made: artefact.Artefact, version: str) -> None:
    done = subprocess.run(
        [python(version), "-I", "-S", str(made.pyz), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == corral.__version__


@pytest.mark.parametrize("version", VERSIONS)
def test_it_has_all_that_its_modules_import(made: artefact.Artefact, version: str) -> None:
    run = [python(version), "-I", "-S", "-c", IMPORT_ALL, str(made.pyz)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_holds_nothing_compiled_and_nothing_of_the_servers(made: artefact.Artefact) -> None:
    names = zipfile.ZipFile(made.pyz).namelist()
    assert not [name for name in names if name.endswith((".so", ".pyc", ".pyd"))]
    ours = {name.split("/")[1] for name in names if name.startswith("corral/")}
    assert ours == {"__init__.py", "agent", "protocol"}
    assert any("licenses" in name for name in names)


def test_the_same_sources_give_the_same_bytes(made: artefact.Artefact, tmp_path: Path) -> None:
    assert artefact.build(tmp_path).pyz.read_bytes() == made.pyz.read_bytes()


def test_the_sums_have_one_entry_of_the_exact_name(made: artefact.Artefact) -> None:
    digest = hashlib.sha256(made.pyz.read_bytes()).hexdigest()
    assert made.sums.read_text() == f"{digest}  corral-agent.pyz\n"
    assert made.sha256 == digest


def test_a_damaged_file_is_made_again_and_a_good_one_left(tmp_path: Path) -> None:
    first = artefact.build(tmp_path)
    inode = first.pyz.stat().st_ino
    assert artefact.build(tmp_path).pyz.stat().st_ino == inode
    first.pyz.write_bytes(first.pyz.read_bytes()[:-1])
    assert artefact.build(tmp_path) == first
    assert hashlib.sha256(first.pyz.read_bytes()).hexdigest() == first.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", "corral-agent.pyz", "made-of"]


def test_the_site_serves_it_to_anybody(world: World) -> None:
    pyz = world.client().get("/api/v1/agent/artefact/corral-agent.pyz")
    sums = world.client().get("/api/v1/agent/artefact/SHA256SUMS")
    assert (pyz.status_code, sums.status_code) == (200, 200)
    assert sums.text == f"{hashlib.sha256(pyz.content).hexdigest()}  corral-agent.pyz\n"


@pytest.mark.parametrize("file", ["made-of", "..", "%2e%2e%2fcorral.db", "corral-agent.pyz%00", "sha256sums", ""])
def test_nothing_else_is_served(world: World, file: str) -> None:
    assert world.client().get(f"/api/v1/agent/artefact/{file}").status_code == 404


def test_install_sh_is_the_same_whatever_the_request_says(world: World) -> None:
    hostile = {"Host": "evil.example", "X-Forwarded-Host": "$(id)", "User-Agent": "`id`", "Referer": "';id"}
    answer = world.client().get("/api/v1/install.sh?url=$(id)&label=x", headers=hostile)
    assert answer.content == install_script()
    assert b"evil" not in answer.content
