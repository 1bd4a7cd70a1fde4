"""A fake NVIDIA driver for tests and demos: builds tests/agent/fake_nvml.c and writes its state file.

    fake = FakeNvml(folder)
    fake.write([fake_gpu(0), fake_gpu(1, error_DeviceGetUUID=15)], system={"error.Init": 18})
    subprocess.Popen(..., env=fake.env())

By hand: `python tests/fake_nvml.py FOLDER --gpus 8` prints the two variables to export.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "agent" / "fake_nvml.c"
MIB = 1 << 20

FakeGpu = dict[str, "str | int | Sequence[str]"]
"""Keys of the state file (see fake_nvml.c); a list stands for several lines."""


def fake_gpu(number: int, **keys: str | int | Sequence[str]) -> FakeGpu:
    """Return an idle H100 whose UUID, slot and minor follow from `number`.

    A key's `_` after error, hang and crash stands for the dot: `hang_DeviceGetUUID=1`.
    The minor is not the index: 100 less the number, as on machines whose order differs.
    """
    gpu: FakeGpu = {
        "uuid": f"GPU-00000000-0000-4000-8000-{number:012d}",
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"16500000{number:05d}",
        "pci": f"00000000:{0x10 + number:02X}:00.0",
        "minor": 100 - number,
        "mem_total": 81559 * MIB,
        "mem_used": 4 * MIB,
    }
    for key, value in keys.items():
        fault, _, call = key.partition("_")
        gpu[f"{fault}.{call}" if fault in ("error", "hang", "crash") else key] = value
    return gpu


class FakeNvml:
    """A driver library of its own below `folder`, where the state file stands too."""

    def __init__(self, folder: Path, built: Path | None = None) -> None:
        """`built`: a library that `build` made before, which is copied (None: build it)."""
        folder.mkdir(parents=True, exist_ok=True)
        self.library = folder / "libnvidia-ml.so.1"
        self.state = folder / "gpus.state"
        if built is None:
            build(self.library)
        else:
            shutil.copy(built, self.library)

    def env(self) -> dict[str, str]:
        """Return an environment in which NVML is this fake."""
        path = os.environ.get("LD_LIBRARY_PATH", "")
        here = str(self.library.parent)
        return {
            **os.environ,
            "LD_LIBRARY_PATH": f"{here}{os.pathsep}{path}" if path else here,
            "FAKE_NVML_STATE": str(self.state),
        }

    def write(self, gpus: Sequence[FakeGpu], system: Mapping[str, str | int] | None = None) -> None:
        """Replace what the driver shows, at once for processes that already use it."""
        lines = [f"system {key} {value}" for key, value in (system or {}).items()]
        for index, gpu in enumerate(gpus):
            for key, value in gpu.items():
                values = [value] if isinstance(value, (str, int)) else value
                lines += [f"gpu {index} {key} {one}" for one in values]
        beside = self.state.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        beside.replace(self.state)

    def replace_library(self) -> None:
        """Do what an upgrade of the driver's package does: another file in the library's place."""
        beside = self.library.with_suffix(".new")
        shutil.copy(self.library, beside)
        beside.replace(self.library)

    def sessions(self) -> list[int]:
        """Return the pids that opened NVML successfully, in order."""
        log = Path(f"{self.state}.inits")
        return [int(line) for line in log.read_text("utf-8").split()] if log.exists() else []


def build(library: Path) -> None:
    """Compile the fake library. Errors: `CalledProcessError`, `FileNotFoundError` without gcc."""
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(SOURCE)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a fake NVIDIA driver library and its state file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=8)
    given = parser.parse_args()
    fake = FakeNvml(given.folder)
    fake.write([fake_gpu(number) for number in range(given.gpus)])
    env = fake.env()
    print(f"LD_LIBRARY_PATH={env['LD_LIBRARY_PATH']}\nFAKE_NVML_STATE={env['FAKE_NVML_STATE']}")


if __name__ == "__main__":
    main()
