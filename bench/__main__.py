"""`python -m bench [PART …]`: measures, and writes one JSON document to standard output. Progress goes to stderr.

Each part runs alone too; parts that need the same ground share it. What is started is ended and
removed, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import carving, creations, fleet, ground, placement, quotas, requests, ssh, starting
from bench.figures import Result, machine, say

PARTS = (
    "machine",
    "cli",
    "placement",
    "quotas",
    "start",
    "fleet",
    "requests",
    "creations",
    "restart",
    "carve",
    "agent",
    "ssh",
)
ON_SQLITE = {"fleet", "requests", "creations", "restart"}
REAL = {"carve", "agent", "ssh"}


class Bench:
    """The parts asked for, their figures as they come in."""

    def __init__(self, wanted: set[str], options: argparse.Namespace) -> None:
        self.wanted, self.options = wanted, options
        self.found: Result = {}

    def run(self) -> None:
        with self._told("cli"):
            self._add("cli", starting.command_line)
        with self._told("placement"):
            self._add("placement", placement.measure)
        with self._told("quotas"):
            self._add("quotas", quotas.measure)
        with self._told("start"):
            self._add("start", starting.cold)
        if self.wanted & ON_SQLITE:
            self._simulated()
        if self.wanted & REAL:
            self._real()

    def _add(self, part: str, measure: object) -> None:
        if part in self.wanted:
            assert callable(measure)
            self.found[part] = measure()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """A part that cannot be measured here is told in its place; the others go on."""
        try:
            yield
        except Exception as error:
            say(f"{what}: {type(error).__name__}: {error}")
            self.found.setdefault("not_measured", {})[what] = f"{type(error).__name__}: {error}"

    def _simulated(self) -> None:
        count, asked = self.options.machines, self.options
        with self._told("sqlite"), ground.simulated(count, tls=False) as site:
            if "fleet" in self.wanted:
                self.found["fleet"] = [fleet.measure(site, asked.seconds)]
            self._add("requests", lambda: requests.measure(site))
            if self.wanted & {"creations", "restart"}:
                self.found["creations"] = [creations.measure(site, asked.creations)]
            self._add("restart", lambda: starting.again(site))
        if "fleet" in self.wanted:
            with self._told("fleet over TLS"), ground.simulated(count, tls=True) as site:
                self.found.setdefault("fleet", []).append(fleet.measure(site, asked.seconds))
        if "creations" in self.wanted:
            with self._told("postgresql"), ground.simulated(count, postgresql=True) as site:
                self.found.setdefault("creations", []).append(creations.measure(site, asked.creations // 3))

    def _real(self) -> None:
        with self._told("podman"), ground.images() as store:
            with ground.real(store) as stack:
                self._add("carve", lambda: carving.measure(stack, self.options.times))
                self._add("agent", lambda: carving.agent(stack))
                if "ssh" in self.wanted:
                    self.found["ssh"] = [ssh.measure(stack)]
            if "ssh" in self.wanted:
                with ground.real(store, tls=True) as stack:
                    self.found["ssh"].append(ssh.measure(stack))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Corral on this machine.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all of them")
    parser.add_argument("--machines", type=int, default=1000, help="simulated machines (1000)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each window of reports (12)")
    parser.add_argument("--creations", type=int, default=2400, help="with machines connected, then without (2400)")
    parser.add_argument("--times", type=int, default=7, help="compute clusters carved with Podman (7)")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(set(options.parts or PARTS), options)
    began = time.monotonic()
    facts = machine()
    try:
        bench.run()
    except KeyboardInterrupt:
        say("stopped; what was measured so far follows")
    facts["load_1m_at_end"] = round(os.getloadavg()[0], 2)
    document = {"machine": facts, **bench.found, "took_s": round(time.monotonic() - began)}
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 1 if "not_measured" in bench.found else 0


if __name__ == "__main__":
    sys.exit(main())
