"""A PostgreSQL server of the tests' own: started on a socket in a temporary folder, always ended."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binaries() -> Path | None:
    """Return the folder of the newest installed PostgreSQL server, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def server(*, durable: bool = False) -> Iterator[str]:
    """Run a server; yields the URL of its `postgres` database. `durable`: as people run it, every commit synced."""
    bin_dir = binaries()
    if bin_dir is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="corral-pg-"))
    as_user = _unprivileged(folder)
    try:
        initdb: list[str | Path] = [
            bin_dir / "initdb",
            "-D",
            folder / "data",
            "-U",
            "corral",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        subprocess.run([*as_user, *initdb], check=True, stdout=subprocess.DEVNULL)
        options = f"-k {folder} -h '' -c max_connections=200"
        options += "" if durable else " -c fsync=off -c full_page_writes=off"
        pg_ctl: list[str | Path] = [*as_user, bin_dir / "pg_ctl", "-D", folder / "data", "-w", "-s"]
        subprocess.run([*pg_ctl, "-l", folder / "log", "-o", options, "start"], check=True)
        try:
            yield f"postgresql://corral@/postgres?host={folder}"
        finally:
            subprocess.run([*pg_ctl, "-m", "immediate", "stop"], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> list[str | Path]:
    """PostgreSQL refuses root: give the folder to its own user and return how to become that user."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
