"""The systemd units: good ones by systemd's own check, and the agent's the same as `install.sh` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_no_fault_in_a_unit(unit: Path, tmp_path: Path) -> None:
    # The programs stand where an installation puts them, which is not here.
    here = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / unit.name).write_text(here, "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_agents_unit_is_the_one_that_install_sh_writes() -> None:
    script = (ROOT / "src/corral/agent/install.sh").read_text("utf-8")
    written = re.search(r'cat >"\$work/unit" <<TEXT\n(.*?\n)TEXT\n', script, re.DOTALL)
    assert written is not None
    defaults = {"$prefix": "/opt/corral-agent", "$state": "/var/lib/corral-agent", "$driver": "podman"}
    for name, value in defaults.items():
        assert f"{name[1:]}={value}" in script
    text = re.sub(r"\$[a-z]+", lambda match: defaults[match[0]], written[1])
    assert (ROOT / "deploy/corral-agent.service").read_text("utf-8") == text
