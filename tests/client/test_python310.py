"""The SDK runs on Python 3.10 and is pure Python: what it imports beside the standard library is httpx."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "src" / "corral" / "client"
NEWER = {"tomllib", "StrEnum", "TaskGroup", "ExceptionGroup", "Self", "assert_never", "UTC"}


def test_the_client_imports_nothing_but_the_standard_library_and_httpx() -> None:
    for file in CLIENT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.split(".")[0]
                assert (
                    top in sys.stdlib_module_names
                    or top == "httpx"
                    or name.startswith("corral.client")
                    or (name == "corral")
                ), f"{file.name} imports {name}"


def test_the_client_uses_no_newer_names() -> None:
    for file in CLIENT.rglob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 10))
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not used & NEWER, file.name


def test_the_standard_library_part_runs_on_python_3_10() -> None:
    python = _python310()
    if python is None:
        pytest.skip("Python 3.10 is not installed: the names it lacks were looked for in the source only")
    program = "import corral.client.config, corral.client.streams, corral.client.ssh, corral.cli.proxy"
    source = str(CLIENT.parents[1])
    subprocess.run([python, "-I", "-c", f"import sys; sys.path.insert(0, {source!r}); {program}"], check=True)


def _python310() -> str | None:
    by_pyenv = map(str, (Path.home() / ".pyenv" / "versions").glob("3.10.*/bin/python"))
    for candidate in ("python3.10", *by_pyenv):
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", "pass"], capture_output=True, check=False).returncode == 0:
            return path
    return None
