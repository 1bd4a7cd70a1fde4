"""`corral machine faults` and `clear-fault`: GPUs that are fenced, and giving one free again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from corral.cli.output import Column, age, column, emit, safe, say, state_style, table
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.client.machine_models import Fault


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "--state",
    type=click.Choice(["open", "gone", "cleared", "all"]),
    default="open",
    show_default=True,
    help="gone: of GPUs that are on no machine now.",
)
@at("org", "cluster")
def faults(place: Place, name: str | None, state: str) -> None:
    """GPUs' faults, the newest first; with NAME only of that machine. A GPU with an open one is never assigned."""
    rows = [one.raw for one in place.cluster.faults.list(state, name)]
    columns = [
        column("MACHINE", "machine"),
        column("GPU", "gpu"),
        column("MODEL", "model", drop=3),
        Column("FAULT", lambda row: f"{row['code']}: {row['meaning']}", flow=True),
        Column("SINCE", lambda row: age(row["since"])),
        column("TIMES", "count", right=True, drop=2),
        column("STATE", "state", style=state_style),
        Column("CLEARED", _cleared, drop=1),
    ]
    emit(rows, lambda: table(rows, columns, "No faulty GPU."))


def _cleared(row: dict[str, Any]) -> str:
    return f"{age(row['cleared_at'])} ago by {row['cleared_by']}" if row["cleared_at"] else ""


@click.command(cls=Command)
@click.argument("name")
@click.argument("gpu")
@click.option("--dry-run", is_flag=True, help="Only say what would be cleared.")
@at("org", "cluster")
def clear_fault(place: Place, name: str, gpu: str, dry_run: bool) -> None:
    """Clear the faults of a GPU (its UUID) of machine NAME, which has to be connected: it may be assigned again.

    A fault that is still there fences the GPU again at once.
    """
    done = place.cluster.faults.would_clear(name, gpu) if dry_run else place.cluster.faults.clear(name, gpu)

    def draw() -> None:
        if done.cleared:
            say(f"{'Would clear' if dry_run else 'Cleared'}: {named(done.cleared)}")
        if done.still:
            say(f"Still there, so it stays fenced: {named(done.still)}")
            if not done.cleared:
                say("Nothing was cleared: it was said again meanwhile. If that is known, clear it again.")
        elif not done.cleared:
            say(f"{safe(gpu)} has no fault.")

    emit(done.raw, draw)


def named(found: Sequence[Fault]) -> str:
    """Return faults in one line."""
    return ", ".join(f"{safe(one.code)} ({safe(one.meaning)})" for one in found)
