"""One GPU probe process as the agent holds it: pipes with deadlines, and a polite end.

It is never killed by SIGKILL: that may freeze the GPU which the driver is busy with. It is
asked to end by closing its input, then by SIGTERM; one that waits in the kernel (state D)
is left alone until it comes back.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import corral
from corral.agent.inventory.files import printable
from corral.agent.inventory.probe_messages import REQUEST, Answer, ProbeStatus
from corral.protocol import codec

MAX_ANSWER_BYTES = 4 << 20
STDERR_TAIL_BYTES = 2000
MALFORMED = Answer(ProbeStatus.FAILED, "the GPU probe's answer is malformed; is the agent's release intact?")


class ProbeDied(Exception):
    """The process ended. The message says how."""


def default_argv() -> list[str]:
    """Return the command line of the probe: of this package, or of the one file that the agent runs from."""
    here = Path(corral.__file__)
    archive = next((path for path in here.parents if path.is_file()), None)
    if archive is not None:
        return [sys.executable, str(archive), "nvml-probe"]
    return [sys.executable, "-m", "corral.agent.inventory.nvml_probe"]


class ProbeProcess:
    """Not thread-safe. Errors: OSError when it cannot be started."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            env={**env, "PYTHONPATH": _with_this_package(env.get("PYTHONPATH", ""))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._received = b""
        self._said = b""
        self._selector = selectors.DefaultSelector()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
        self.stopping = False
        """Its input is closed: it will answer nothing that is asked from now on."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self) -> None:
        """Ask for one answer. Errors: `ProbeDied`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(REQUEST)
        except OSError:
            self._wait_for_end(1.0)
            raise ProbeDied(self._epitaph()) from None

    def receive(self, timeout_s: float) -> Answer | None:
        """Return the next answer; None when there is none within `timeout_s`. Errors: `ProbeDied`."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not self._selector.get_map():  # both pipes are at their end
                if self._wait_for_end(until - time.monotonic()):
                    raise ProbeDied(self._epitaph())
                return None
            if not self._fill(until - time.monotonic()):
                return None
            if len(self._received) > MAX_ANSWER_BYTES:
                self._refuse_more()
                return MALFORMED
        line, _, self._received = self._received.partition(b"\n")
        return _decoded(line)

    def ask_to_stop(self) -> None:
        """Close its input: it ends as soon as it is back from the driver."""
        self.stopping = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """Send SIGTERM: ends it unless it waits in the kernel, where it then ends on coming back."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def ended(self, timeout_s: float) -> bool:
        """Return True when it has ended within `timeout_s`; then everything of it is released."""
        if not self._wait_for_end(timeout_s):
            return False
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return True

    def _fill(self, timeout_s: float) -> bool:
        """Read what comes within `timeout_s`; return False when nothing does."""
        ready = self._selector.select(max(0.0, timeout_s))
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fileobj is self._process.stdout:
                self._received += data
            else:
                self._said = (self._said + data)[-STDERR_TAIL_BYTES:]
        return bool(ready)

    def _refuse_more(self) -> None:
        """Close our end of its output: a probe that writes without end must not wait for us for ever."""
        self._received = b""
        assert self._process.stdout is not None
        self._selector.unregister(self._process.stdout)
        self._process.stdout.close()

    def _wait_for_end(self, timeout_s: float) -> bool:
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _epitaph(self) -> str:
        while self._selector.get_map() and self._fill(0.0):
            pass
        code = self._process.returncode
        said = self._said.decode("utf-8", "replace").strip().splitlines()
        how = f"exit status {code}" if code is None or code >= 0 else f"signal {-code} ({_signal_name(-code)})"
        return f"{how}: {printable(said[-1])}" if said else how


def _with_this_package(path: str) -> str:
    ours = str(Path(corral.__file__).parent.parent)
    return os.pathsep.join([ours, path]) if path else ours


def _decoded(line: bytes) -> Answer:
    try:
        answer = codec.decode(line, {"probe": Answer})
    except codec.WireError:
        return MALFORMED
    return answer if isinstance(answer, Answer) else MALFORMED


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
