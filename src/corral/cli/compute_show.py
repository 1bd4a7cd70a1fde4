"""How a compute cluster is shown: a row, all about it, and its progress while it is prepared or ended."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

from corral.cli.journal_commands import moment
from corral.cli.output import Column, age, column, details, note, safe, say, shown, state_style, table
from corral.client.compute_models import ComputeDetails


def _state(row: dict[str, Any]) -> str:
    if row["stop_asked_at"] and not row["ended_at"]:
        return f"{row['state']}, stopping"
    step = str(row["step"]).replace("_", " ")
    return f"{row['state']}: {step}" if row["state"] == "provisioning" and step else str(row["state"])


def _gpus(row: dict[str, Any]) -> str:
    return f"{row['gpus']} x {row['gpu_model'] or 'any'}" if row["gpus"] else ""


def _gib(value: object) -> str:
    return f"{value:g} GiB" if isinstance(value, (int, float)) else "-"


def _mbps(value: object) -> str:
    return f"{value / 1000:g} Gbit/s" if isinstance(value, int) and value else ""


ROWS = [
    column("NAME", "name"),
    Column("STATE", _state, style=state_style),
    column("MACHINE", "machine"),
    Column("GPUS", _gpus, flow=True),
    column("VCPU", "vcpu", right=True, drop=1),
    Column("RAM", lambda row: _gib(row["ram_gib"]), right=True, drop=2),
    Column("STORAGE", lambda row: _gib(row["storage_gib"]), right=True, drop=4),
    Column("NETWORK", lambda row: _mbps(row["network_mbps"]), right=True, drop=5),
    column("SSH", "ssh"),
    Column("AGE", lambda row: age(row["created_at"]), right=True, drop=3),
]


def draw_details(found: ComputeDetails) -> None:
    raw = found.raw
    details(
        [
            ("name", found.name),
            ("id", found.id),
            ("state", f"{_state(raw)}, for {age(raw['state_since'])}"),
            ("why", found.reason),
            ("wanted", found.wanted),
            ("seen", found.seen),
            ("machine", found.machine),
            ("cluster", found.cluster),
            ("GPUs", _gpus(raw)),
            ("GPU identities", found.gpu_uuids),
            ("vCPU", found.vcpu),
            ("RAM", _gib(found.ram_gib)),
            ("storage", f"{_gib(found.storage_gib)} ({_quota(found.storage_quota)})"),
            ("network", _mbps(found.network_mbps)),
            ("image", found.image),
            ("ssh", f"{found.ssh}: corral ssh {found.name}" if found.ssh == "ready" else found.ssh),
            ("made", f"by {found.created_by}, {age(raw['created_at'])} ago"),
            ("ends by", raw["must_end_by"]),
            ("drives", [f"/drives/{name}" for name in found.drives]),
            ("if its machine is lost", _policy(found.restart_policy)),
            ("ended", raw["ended_at"]),
            ("stopped", found.stop_reason),
            ("killed for memory", found.oom_kills or None),
            ("restarts", found.restarts or None),
            ("exit code", found.exit_code),
        ]
    )
    if found.history:
        say()
        table([change.raw for change in found.history], _HISTORY)


def _policy(name: str) -> str:
    return {"never": "it ends", "on_machine_loss": "it is placed again elsewhere"}.get(name, name)


def _quota(kind: str | None) -> str:
    return {"loop": "a real limit", "none": "not enforced on this machine"}.get(kind or "", "limit not known yet")


_HISTORY = [
    Column("TIME", lambda row: moment(row["at"])),
    Column("WHAT", lambda row: row["state"] or row["step"] or str(row["type"]).removeprefix("workload.")),
    column("BY", "by"),
    column("WHY", "reason", flow=True),
]


def progress(changes: Iterator[ComputeDetails]) -> ComputeDetails:
    """Show each change on stderr as it comes, on a terminal in one line; return the last one."""
    live = sys.stderr.isatty()
    width = 0
    for now in changes:
        line = f"{safe(now.name)}: {safe(_state(now.raw))}{f' ({shown(now.reason)})' if now.reason else ''}"
        if not live:
            note(line)
            continue
        line = line[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be written over
        print(f"\r{line:<{width}}", end="", file=sys.stderr, flush=True)
        width = len(line)
    if live:
        print(file=sys.stderr)
    return now
