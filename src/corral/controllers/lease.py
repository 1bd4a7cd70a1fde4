"""One control plane process serves a site: it holds the site's lease and renews it (design decision 15).

A second process refuses to start and says who serves. A process that was away for longer than its lease
writes nothing until it has renewed it; one that finds another holder writes nothing more and stops. A holder
that died on this host is found dead by its process id and start time, so a restart after a crash does not wait
for its lease.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from structlog import get_logger

from corral.store import engine, lease
from corral.store.engine import Database

log = get_logger()

RENEW_EVERY_S = 5.0
LASTS = timedelta(seconds=15)


class LeaseTaken(RuntimeError):
    """Another control plane serves this site; the message says which, until when, and what to do."""


class Lease:
    """Held from `start` to `stop`. `on_lost` is called, in a thread, when another process has taken it."""

    def __init__(self, db: Database, on_lost: Callable[[], None], every_s: float | None = None) -> None:
        self._db = db
        self._on_lost = on_lost
        self._every_s = RENEW_EVERY_S if every_s is None else every_s
        self._me = process_name()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    async def start(self) -> None:
        """Take the lease. Errors: `LeaseTaken`."""
        if not self._take():
            raise LeaseTaken(refusal(self._db))
        self._thread.start()

    async def stop(self) -> None:
        self._end.set()
        self._thread.join()
        if not self._db.fenced:
            with self._db.write(of_lease=True) as tx:
                lease.give_back(tx, self._me)
        self._db.writes_until = math.inf

    def _take(self) -> bool:
        since = engine.boot_time()
        with self._db.write(of_lease=True) as tx:
            row = lease.held(tx)
            holder = row["lease_holder"] if row is not None else None
            dead = holder if holder is not None and is_dead(holder) else None
            took = lease.take(tx, self._me, tx.now + LASTS, dead)
        if took:
            self._db.writes_until = since + LASTS.total_seconds()
        return took

    def _keep(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                if self._take():
                    continue
            except Exception:  # the database is away: nobody else can take the lease either
                log.exception("lease_not_renewed")
                continue
            self._db.fenced = f"This control plane has lost the site: {refusal(self._db)}"
            log.error("lease_lost", why=self._db.fenced)
            self._on_lost()
            return


def refusal(db: Database) -> str:
    """Say who serves the site, until when, and what to do."""
    with db.read() as tx:
        row = lease.held(tx)
    if row is None or row["lease_holder"] is None:
        return "The lease was taken and given back at this moment. Start again."
    host, _, _, pid, _ = row["lease_holder"].split(":")
    return (
        f"Another control plane serves this site: process {pid} on {host}, at least until "
        f"{row['lease_until']:%Y-%m-%dT%H:%M:%SZ}. Stop that one first; "
        "if its machine is lost, start again after that time."
    )


def process_name() -> str:
    """Return host:boot:pid namespace:pid:start time, in 64 characters: tells a living holder from a dead one."""
    host = socket.gethostname().replace(":", "-")[:20]
    return f"{host}:{_boot()}:{_pid_namespace()}:{os.getpid()}:{_started(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Return whether `holder` ran on this host, since it booted, and does not run any more. Unknown is not dead."""
    host, _, rest = process_name().partition(":")
    parts = holder.split(":")
    if len(parts) != 5 or parts[:3] != [host, *rest.split(":")[:2]]:
        return False
    return _started(int(parts[3])) != parts[4]


def stop_process() -> None:
    """End this process as `systemctl stop` would."""
    os.kill(os.getpid(), signal.SIGTERM)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def _pid_namespace() -> str:
    return Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")


def _started(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; "" when there is none (a zombie is none)."""
    try:
        # The command's name, in parentheses, may hold anything; what follows it has fixed places.
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else after_name[19]
