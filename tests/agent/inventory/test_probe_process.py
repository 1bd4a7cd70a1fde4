"""The probe's command line: from the package, and from the one file that the agent is shipped as."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pynvml

import corral
from corral.agent.inventory.probe_process import default_argv
from tests.fake_nvml import FakeNvml, fake_gpu

MAIN = """
import sys
from pathlib import Path
if sys.argv[1] == "nvml-probe":
    from corral.agent.inventory.nvml_probe import main
    sys.exit(main(sys.argv[2:]))
from corral.agent.inventory.gpus import GpuProbe
probe = GpuProbe(Path(sys.argv[1]))
reading = probe.read()
probe.close()
print(reading.status, *(gpu.uuid for gpu in reading.gpus))
"""


def test_from_a_package_the_probe_is_a_module() -> None:
    assert default_argv() == [sys.executable, "-m", "corral.agent.inventory.nvml_probe"]


def test_in_one_file_the_agent_runs_itself_as_its_probe(tmp_path: Path, fake: FakeNvml) -> None:
    source, archive, state = tmp_path / "source", tmp_path / "agent.pyz", tmp_path / "state"
    package = Path(corral.__file__).parent
    for part in ("agent", "protocol"):
        shutil.copytree(package / part, source / "corral" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(package / "__init__.py", source / "corral")
    shutil.copy(pynvml.__file__, source)
    (source / "__main__.py").write_text(MAIN, "utf-8")
    zipapp.create_archive(source, archive)
    state.mkdir()
    fake.write([fake_gpu(0), fake_gpu(1)])
    # -I: nothing from outside the archive may help.
    command = [sys.executable, "-I", str(archive), str(state)]
    said = subprocess.run(command, env=fake.env(), capture_output=True, text=True, timeout=60)
    assert (said.stdout.split(), said.stderr) == (["ok", fake_gpu(0)["uuid"], fake_gpu(1)["uuid"]], "")
