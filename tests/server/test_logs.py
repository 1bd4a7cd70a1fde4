"""Logs: one JSON object a line, the libraries' own among them, and no secret from a fault's local variables."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging
import structlog
from corral.server import logs
logs.configure("info")
structlog.get_logger().info("hello", name="\\x1b[31mred")
structlog.get_logger().debug("quiet")
logging.getLogger("uvicorn.error").warning("theirs %s", 1)
def fail(token):
    raise ValueError("no")
try:
    fail("cora_" + "secret")
except ValueError as error:
    structlog.get_logger().error("fault", exc_info=error)
    logging.getLogger("x").error("their fault", exc_info=error)
"""


def _lines() -> list[str]:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return ran.stderr.splitlines()


def test_every_line_is_one_json_object_and_safe_for_a_terminal() -> None:
    lines = _lines()
    assert [json.loads(line)["event"] for line in lines] == ["hello", "theirs 1", "fault", "their fault"]
    assert not any("\x1b" in line for line in lines)


def test_a_faults_local_variables_are_not_logged() -> None:
    lines = _lines()
    assert "ValueError" in lines[2] and "ValueError" in lines[3]
    assert "cora_secret" not in "".join(lines)
