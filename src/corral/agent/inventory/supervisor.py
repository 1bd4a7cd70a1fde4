"""Keeps at most one GPU probe process and gets answers from it (spec 40, "GPUs and their health").

- A probe that does not answer within the deadline is stuck, and that is itself reported. No
  second one is started meanwhile, also not by an agent that starts later.
- A stuck one that comes back is asked anew, or replaced when it was already asked to end.
- One that dies is started again at once; when it dies again, later and later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corral.agent.inventory.pid_file import PidFile
from corral.agent.inventory.probe_messages import Answer, ProbeStatus
from corral.agent.inventory.probe_process import ProbeDied, ProbeProcess, default_argv

POLL_S = 0.05


@dataclass(frozen=True)
class Patience:
    """Seconds."""

    start_s: float = 60.0
    """A new probe's first answer: the driver may have to wake every GPU first."""
    close_after_s: float = 30.0
    """Stuck for so long: it is asked to end by closing its input ..."""
    term_after_s: float = 60.0
    """... and then by SIGTERM."""
    stop_s: float = 5.0
    """How long an end that was asked for is waited for."""
    retry_first_s: float = 5.0
    """After a failure; doubled with each further one."""
    retry_longest_s: float = 60.0
    retry_none_s: float = 300.0
    """Where there never was a driver (an upgrade takes it away for moments only)."""


class ProbeSupervisor:
    """Thread-safe; one call at a time goes on, others wait for it."""

    def __init__(
        self,
        state_dir: Path,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        patience: Patience = Patience(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._argv = list(argv) if argv is not None else default_argv()
        self._env = env
        self._patience = patience
        self._clock = clock
        self._pid_file = PidFile(state_dir / "nvml-probe.pid")
        self._lock = threading.Lock()
        self._process: ProbeProcess | None = None
        self._asked_at: float | None = None
        self._answered = False
        self._ever_ok = False
        self._stuck_since: float | None = None
        self._left_since: float | None = None
        self._failures = 0
        self._retry_at = float("-inf")
        self._trouble = Answer(ProbeStatus.NONE)

    @property
    def pid(self) -> int | None:
        """The probe process that is held now."""
        return None if self._process is None else self._process.pid

    def ask(self, deadline_s: float) -> Answer:
        """Return what the probe says within `deadline_s`, or why it says nothing. Never raises."""
        with self._lock:
            until = self._clock() + deadline_s
            if self._process is None:
                if self._clock() < self._retry_at:
                    return self._trouble
                left = self._left_by_an_earlier_agent(deadline_s)
                if left is not None:
                    return left
            return self._ask_until_it_lives(until)

    def close(self) -> None:
        """Ask the probe to end and wait a little. One that is stuck is left; the next agent will see it."""
        with self._lock:
            process = self._process
            if process is None:
                return
            process.ask_to_stop()
            if not process.ended(self._patience.stop_s):
                process.terminate()
            if process.ended(self._patience.stop_s):
                self._gone()

    def _ask_until_it_lives(self, until: float) -> Answer:
        while True:
            try:
                if self._process is None:
                    self._start()
                return self._ask(until)
            except ProbeDied as death:
                if self._stuck_since is None:  # the end of a stuck one was asked for
                    self._failures += 1
                self._gone()
                if self._failures > 1:
                    return self._pause(Answer(ProbeStatus.FAILED, f"the GPU probe dies: {death}"))
            except OSError as error:
                self._failures += 1
                return self._pause(Answer(ProbeStatus.FAILED, f"the GPU probe cannot be started: {error.strerror}"))

    def _start(self) -> None:
        self._process = ProbeProcess(self._argv, os.environ if self._env is None else self._env)
        self._pid_file.write(self._process.pid)
        self._asked_at, self._answered = None, False

    def _ask(self, until: float) -> Answer:
        process = self._process
        assert process is not None
        if self._stuck_since is not None:
            late = process.receive(0.0)
            if process.stopping and process.ended(0.0):
                raise ProbeDied("it was asked to end")
            if late is None or process.stopping:
                return self._still_stuck(process, self._stuck_since)
            self._stuck_since, self._asked_at = None, None  # back; what it says now may be old, so ask anew
        if self._asked_at is None:
            process.send()
            self._asked_at = self._clock()
        answer = process.receive(until - self._clock())
        if answer is not None:
            return self._settle(answer, process, until)
        if not self._answered and self._clock() - self._asked_at < self._patience.start_s:
            return Answer(ProbeStatus.STARTING, "the driver is initialising its GPUs")
        self._stuck_since = self._clock()
        return _stuck(process.pid)

    def _settle(self, answer: Answer, process: ProbeProcess, until: float) -> Answer:
        self._asked_at, self._answered = None, True
        if answer.status is ProbeStatus.OK:
            self._failures, self._ever_ok = 0, True
            return answer
        # Any other answer is a process's last.
        process.ask_to_stop()
        if not process.ended(self._patience.stop_s):
            self._stuck_since = self._clock()
            return _stuck(process.pid)
        self._gone()
        if answer.status is ProbeStatus.REOPEN:
            return self._ask_until_it_lives(until)
        self._failures += 1
        return self._pause(answer)

    def _still_stuck(self, process: ProbeProcess, since: float) -> Answer:
        stuck_for = self._clock() - since
        if stuck_for >= self._patience.close_after_s and not process.stopping:
            process.ask_to_stop()
        if stuck_for >= self._patience.term_after_s:
            process.terminate()
        return _stuck(process.pid)

    def _pause(self, trouble: Answer) -> Answer:
        longest = self._patience.retry_longest_s
        wait = min(longest, self._patience.retry_first_s * 2.0 ** min(self._failures, 16) / 2)
        if trouble.status is ProbeStatus.NONE and not self._ever_ok:
            wait = self._patience.retry_none_s
        self._trouble, self._retry_at = trouble, self._clock() + wait
        return trouble

    def _gone(self) -> None:
        """Release a process that has ended."""
        if self._process is not None:
            self._process.ended(0.0)
        self._process, self._asked_at, self._stuck_since = None, None, None
        self._pid_file.clear()

    def _left_by_an_earlier_agent(self, deadline_s: float) -> Answer | None:
        """Wait for a probe that the agent before this one left to end; return that it is stuck when it does not."""
        until = time.monotonic() + deadline_s
        while (pid := self._pid_file.alive()) is not None:
            if time.monotonic() >= until:
                if self._left_since is None:
                    self._left_since = self._clock()
                if self._clock() - self._left_since >= self._patience.term_after_s:
                    self._pid_file.terminate()
                return Answer(ProbeStatus.STUCK, f"process {pid}, left by the agent before this one, {IN_DRIVER}")
            time.sleep(POLL_S)
        self._left_since = None
        return None


IN_DRIVER = "does not come back from the NVIDIA driver"


def _stuck(pid: int) -> Answer:
    return Answer(ProbeStatus.STUCK, f"process {pid} {IN_DRIVER}")
