"""A fleet of simulated machines in a process of its own, told what to do by lines on its standard input.

`corral sim` runs the same fleet; this one can also start its figures anew ("forget") and say them
when it is asked ("stats"). Every answer is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

from bench.figures import Result
from corral.agent.site import Site
from corral.client.api import Corral
from corral.client.config import Site as Login
from corral.sim.fleet import Fleet, FleetSpec, tune
from corral.sim.machine import Hardware

CONNECT_WITHIN_S = 300.0


class Machines:
    """The other process, as the bench sees it. A context manager: at its end the machines are gone."""

    def __init__(self, login: Login, org: str, cluster: str, count: int, gpus: int = 8) -> None:
        order = {"login": vars(login), "org": org, "cluster": cluster, "machines": count, "gpus": gpus}
        command = [sys.executable, "-m", "bench.simulated"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.started = self._ask(json.dumps(order))
        except BaseException:
            self.__exit__()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def forget(self) -> None:
        """Measure anew from here."""
        self._ask("forget")

    def stats(self) -> Result:
        return self._ask("stats")

    def _ask(self, line: str) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the simulated machines ended; see above why")
        result: Result = json.loads(answer)
        return result


async def _run(order: dict[str, Any]) -> None:
    login = Login(**order["login"])
    spec = FleetSpec(order["machines"], Hardware(gpus=order["gpus"]))
    fleet = Fleet(Site.at(login.url, login.ca or ""), spec)
    began = time.monotonic()
    with Corral(site=login) as corral:
        cluster, one_at_a_time = corral.org(order["org"]).cluster(order["cluster"]), threading.Lock()

        def token(_number: int) -> str:
            with one_at_a_time:
                return cluster.create_join_token({}).token or ""

        await fleet.join(token)
    joined_s = time.monotonic() - began
    async with fleet.running():
        connected_s = await fleet.all_connected(CONNECT_WITHIN_S)
        _say({"joined_s": round(joined_s, 1), "connected_s": round(connected_s, 1)})
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "forget":
                fleet.forget_latencies()
            _say(vars(fleet.stats()))


def _say(answer: Result) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    tune()
    asyncio.run(_run(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
