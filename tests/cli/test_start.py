"""Help comes at once: nothing heavy is imported for it; every command of the table is there; pipes may close early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from corral.cli.root import COMMANDS, root

HEAVY = ("httpx", "sqlalchemy", "fastapi", "rich", "pydantic", "uvicorn", "cryptography", "msgspec", "asyncio")


def _corral(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("arguments", [["--help"], ["compute", "--help"], ["site", "serve", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = f"import sys; from corral.main import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage: corral" in ran.stdout
    assert not set(HEAVY) & set(ran.stderr.split())


def test_every_command_of_the_table_is_there_and_documented() -> None:
    context = click.Context(root)
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None and command.name == name
        for path, each in _walk(name, command):
            assert each.help, path


def _walk(path: str, command: click.Command) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            found += _walk(f"{path} {name}", each)
    return found


def test_json_may_stand_before_and_after_the_command() -> None:
    context = click.Context(root)
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None
        for path, each in _walk(name, command):
            if name not in ("agent", "demo"):
                assert any("--json" in p.opts for p in each.get_params(context)), path


def test_an_unknown_command_is_wrong_usage() -> None:
    ran = _corral("frobnicate")
    assert ran.returncode == 2 and "No such command" in ran.stderr


def test_a_pipe_closed_early_leaves_no_traceback() -> None:
    command = f"{sys.executable} -m corral --help | head -1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] in ("0", "141")


def test_a_closed_stdout_ends_as_by_sigpipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "corral", "--help"], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_completion_knows_the_commands(tmp_path: Path) -> None:
    environment = {**os.environ, "_CORRAL_COMPLETE": "bash_complete", "COMP_WORDS": "corral com", "COMP_CWORD": "1"}
    ran = _corral(env=environment, cwd=tmp_path)
    assert "compute" in ran.stdout
