"""Starting: the command line, a control plane on an empty site, and one that has thousands of placements."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

from bench.figures import Result, cpu_s, memory_mib, say, spread, timed_ms
from bench.ground import Site1k, free_port, temporary
from tests.e2e.stack import ORG

TIMES = 11
STARTS = 3
IDLE_S = 5.0


def command_line() -> Result:
    """Return how long `corral --help` takes, in ms."""
    say("cli: corral --help")
    command = [sys.executable, "-m", "corral", "--help"]

    def help_text() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    help_text()  # byte code and page cache
    return {"help_ms": spread([timed_ms(help_text) for _ in range(TIMES)]), "target_ms": 120}


def cold() -> Result:
    """Return how long it takes from a process on an empty folder to its first answer, and what it is at rest."""
    say("start: empty sites")
    starts = []
    for _ in range(STARTS):
        with temporary() as folder:
            port = free_port()
            began = time.perf_counter()
            command = [sys.executable, "-m", "corral", "site", "serve", "--state-dir", str(folder), "--port", str(port)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                _first_answer(f"http://127.0.0.1:{port}")
                starts.append((time.perf_counter() - began) * 1000)
                cpu = cpu_s(process.pid)
                time.sleep(IDLE_S)
                rss, used = memory_mib(process.pid), cpu_s(process.pid) - cpu
            finally:
                process.terminate()
                process.wait(20)
    return {
        "empty_site_ms": spread(starts),
        "cpu_s_to_first_answer": round(cpu, 2),
        "target_ms": 2000,
        "idle_rss_mib": rss,
        "target_rss_mib": 120,
        "idle_cpu_percent": round(100 * used / IDLE_S, 1),
    }


def again(site: Site1k) -> Result:
    """Restart the site with all that was placed on it; return how long until it says that it answers."""
    placed = sum(machine.gpus.allocated for machine in site.stack.owner.org(ORG).cluster(site.stack.cluster).machines())
    say(f"restart: with {placed} placements of one GPU")
    restarts = []
    for _ in range(STARTS):
        site.stack.stop_site()
        began = time.perf_counter()
        site.stack.start_site()  # back when it has said that it answers
        restarts.append((time.perf_counter() - began) * 1000)
    found = {"placements": placed, "restart_ms": spread(restarts), "target_ms": 1000}
    return {**found, "rss_mib": memory_mib(site.stack.site_pid)}


def _first_answer(url: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.005)
    raise RuntimeError("the control plane did not answer within 60 s")
