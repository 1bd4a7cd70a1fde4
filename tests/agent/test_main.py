"""The agent's process: what its children take over from whoever started it."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import os, signal, subprocess
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from corral.agent.main import hear_hangups
{call}
os.kill(os.getpid(), signal.SIGHUP)
print(subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True).stdout.split()[1])
"""


def ignored(call: str) -> int:
    """Return the signals that a child of such a process ignores, as the kernel's mask."""
    done = subprocess.run([sys.executable, "-c", CHILD.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout, 16)


def test_an_agent_started_by_nohup_starts_containers_that_hear_a_hangup() -> None:
    assert ignored("pass") & 1 == 1
    assert ignored("hear_hangups()") & 1 == 0
