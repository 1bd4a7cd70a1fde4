"""What machines and tenants say reaches a person's terminal escaped (spec 45, CLI; spec 50, rule 8)."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace

import httpx

from corral.protocol import messages as wire
from tests import scripted_agent as scripted
from tests.cli.conftest import Running
from tests.scripted_agent import INVENTORY

EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\r\x08"
"""Sets a window's title, rings, clears the screen, in 7-bit and 8-bit form, and writes over the line."""
COLOURS = re.compile(rb"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[K")


def on_a_terminal(running: Running, *arguments: str) -> bytes:
    """Return the bytes that a command writes to the terminal it runs on."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "CORRAL_URL": running.site.url, "CORRAL_TOKEN": running.world.tokens["owner"]}
    env |= {"CORRAL_ORG": "acme", "CORRAL_WORKSPACE": "research", "TERM": "xterm-256color", "COLUMNS": "200"}
    command = [sys.executable, "-m", "corral", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 65536):
            said += data
    except OSError:
        pass  # a terminal's end
    finally:
        os.close(ours)
        process.wait(30)
    assert process.returncode == 0, said
    return said


def tame(said: bytes) -> bytes:
    """Return what was said; fails if a terminal would obey anything in it but colours and line ends."""
    rest = COLOURS.sub(b"", said).replace(b"\r\n", b"\n").decode()
    obeyed = [c for c in rest if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
    assert obeyed == [], repr(said)
    return rest.encode()


def test_escape_sequences_in_host_names_conditions_and_logs_do_not_reach_the_terminal(running: Running) -> None:
    ids = running.world.ids
    where = (ids.orgs["acme"], ids.clusters["default"])
    (machine,) = scripted.enrol(running.site.db, where, "evil")
    with scripted.session(running.site, machine) as speaker:
        hostname = replace(INVENTORY, hostname=f"host{EVIL}")
        condition = wire.Condition("thing", f"broken{EVIL}", blocking=False)
        speaker.report(inventory=hostname, conditions=(condition,))
        body = {"name": "dev", "machine": "evil", "vcpu": 1, "ram_gib": 1, "storage_gib": 1, "ssh_keys": []}
        made = httpx.post(
            f"{running.site.url}/api/v1/orgs/acme/workspaces/research/compute-clusters",
            json=body,
            headers={"Authorization": f"Bearer {running.world.tokens['owner']}"},
        )
        assert made.status_code == 201, made.text
        while not (wanted := speaker.next(wire.Desired).allocations):
            pass  # told before the creation
        (want,) = wanted
        failed = wire.AllocationReport(
            want.id, want.generation, wire.AllocationState.FAILED, message=f"no{EVIL}",
            log=(wire.LogLine(1, f"pulling{EVIL}"),), log_tail=f"last words{EVIL}\n",
        )  # fmt: skip
        speaker.report(failed, inventory=hostname, conditions=(condition,))
        for command, word in (
            (("machine", "show", "evil"), b"host\\x1b"),
            (("machine", "list"), b"evil"),
            (("compute", "show", want.workload), b"no\\x1b"),
            (("compute", "list", "--all"), b"dev"),
            (("compute", "logs", want.workload), b"pulling\\x1b"),
            (("compute", "logs", "--container", want.workload), b"last words\\x1b"),
            (("events",), b"no\\x1b"),
        ):
            assert word in tame(on_a_terminal(running, *command)), command
