"""`corral machine update`, and updating all agents of a cluster: started, watched, stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from corral.cli.output import Column, column, emit, note, safe, say, table, wants_json
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.client.errors import CorralError
from corral.client.machine_models import Machine
from corral.client.updates import ClusterUpdate, UpdatedMachine, UpdatePreview

EVERY_S = 2.0
WAITS_S = 15 * 60.0
"""Of --wait: longer than the site waits for a machine that is connected to begin."""
_STAGES = ("one", "a tenth", "the rest")
_GOES_ON = "What runs on machines goes on: an update stops no work."
_COUNTED = (
    ("done", "done"),
    ("asked", "updating"),
    ("waiting", "waiting"),
    ("failed", "failed"),
    ("left_out", "left out"),
)
_MACHINES = [
    column("MACHINE", "name"),
    Column("STAGE", lambda row: _STAGES[row["stage"]]),
    Column("STATE", lambda row: str(row["state"]).replace("_", " ")),
    column("RELEASE", "release"),
    column("WHY", "message", flow=True),
]


@click.command(cls=Command)
@click.argument("name")
@click.option("--wait", is_flag=True, help="Until it is updated, or has failed to; 15 minutes at most.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@at("org", "cluster")
def update(place: Place, name: str, wait: bool, dry_run: bool) -> None:
    """Update a machine's agent to the site's release; what runs there goes on.

    Also one on which the release failed before: it is tried again.
    """
    if dry_run:
        told = place.cluster.updates.would_update(name)
        emit(told.raw, lambda: _draw_preview(told))
        return
    asked = place.cluster.updates.machine(name)
    if wait and asked.update is not None:
        note(f"Updating {safe(name)}: its agent restarts in a few seconds.")
        asked = _settled(place, asked)
    emit(asked.raw, lambda: say(_said_of(asked)))
    if asked.update is not None and asked.update.state == "failed":
        raise CorralError("UPDATE_FAILED", f"{safe(name)} keeps release {safe(asked.release)}.")
    if asked.update is not None and wait:
        raise CorralError("UPDATE_NOT_DONE", f"{safe(name)} stays asked. Look later: corral machine show {safe(name)}")


def _settled(place: Place, machine: Machine) -> Machine:
    """Return the machine once its update is done or has failed, or as it is when that takes too long."""
    give_up = time.monotonic() + WAITS_S
    while machine.update is not None and machine.update.state != "failed" and time.monotonic() < give_up:
        time.sleep(EVERY_S)
        machine = place.cluster.machine(machine.name).machine
    return machine


def _said_of(machine: Machine) -> str:
    name, going = safe(machine.name), machine.update
    if going is None:
        return f"{name} has release {safe(machine.release)}."
    if going.state == "failed":
        return f"{name} could not update to {safe(going.release)}: {safe(going.message)}."
    if not machine.connected:
        return f"{name} is not connected: it updates to {safe(going.release)} when it comes back."
    if going.message:
        return f"{name} updates to {safe(going.release)}: {safe(going.message)}."
    return f"Updating {name} to {safe(going.release)}: its agent restarts in a few seconds."


def release_text(row: dict[str, Any]) -> str:
    """Return what a machine's release is, whether it is behind, and what becomes of its update."""
    going = row.get("update")
    if going is None:
        return f"{row['release']} (behind)" if row["behind"] else str(row["release"])
    if going["state"] == "failed":
        return f"{row['release']} (update to {going['release']} failed: {going['message']})"
    return f"{row['release']} (updating to {going['release']})"


def _draw_preview(told: UpdatePreview) -> None:
    if told.before == told.after:
        say(f"{safe(told.name)} has release {safe(told.after)} already.")
        return
    say(f"{safe(told.name)} goes from release {safe(told.before)} to {safe(told.after)}. {_GOES_ON}")
    if told.running:
        say("Runs on it: " + ", ".join(f"{safe(work.workspace)}/{safe(work.name)}" for work in told.running))


@click.command("update-agents", cls=Command)
@click.option("--watch", is_flag=True, help="Show the progress until it ends.")
@click.option("--dry-run", is_flag=True, help="Only say which machines would be asked in which stage.")
@at("org", "cluster")
def update_agents(place: Place, watch: bool, dry_run: bool) -> None:
    """Update every agent that is behind on a machine that is up: one, then a tenth, then the rest.

    It ends at the first machine that does not come back. What runs on machines goes on.
    """
    if dry_run:
        _show(place.cluster.updates.preview(), f"No machine is behind. {_GOES_ON}")
        return
    begun = place.cluster.updates.start()
    if begun.id is not None and watch:
        begun = _watched(place, begun)
    emit(begun.raw, lambda: say(_summary(begun)))
    _fail_if_it_did(begun)


@click.command("update-progress", cls=Command)
@click.option("--watch", is_flag=True, help="Until it ends.")
@at("org", "cluster")
def update_progress(place: Place, watch: bool) -> None:
    """The newest update of the cluster's agents: where it stands, and each machine."""
    if watch:
        _watched(place, place.cluster.updates.progress())
    _show(place.cluster.updates.pages(), "No machine takes part.")


@click.command("stop-update", cls=Command)
@at("org", "cluster")
def stop_update(place: Place) -> None:
    """Ask no more machines to update; those that were asked go on."""
    stopped = place.cluster.updates.stop()
    emit(stopped.raw, lambda: say(_summary(stopped)))


def _watched(place: Place, told: ClusterUpdate) -> ClusterUpdate:
    """Say each change of the progress, until the update has ended."""
    said = ""
    while True:
        line = _summary(told)
        if line != said and not wants_json():
            note(line)
            said = line
        if told.state != "running":
            return told
        time.sleep(EVERY_S)
        told = place.cluster.updates.progress()


def _show(pages: Iterator[ClusterUpdate], empty: str) -> None:
    first = next(pages)
    machines: Sequence[UpdatedMachine] = [*first.machines, *(one for page in pages for one in page.machines)]
    rows = [one.raw for one in machines]

    def draw() -> None:
        if first.id is not None:
            say(_summary(first))
        table(rows, _MACHINES, empty)

    emit({**first.raw, "machines": rows, "next_page_token": None}, draw)


def _summary(told: ClusterUpdate) -> str:
    if told.id is None:
        return safe(told.message)
    counted = [
        f"{sum(getattr(stage, step) for stage in told.stages)} {word}"
        for step, word in _COUNTED
        if any(getattr(stage, step) for stage in told.stages)
    ]
    where = (
        f"stage {told.stage + 1} of {len(_STAGES)} ({_STAGES[told.stage]})" if told.state == "running" else told.state
    )
    why = f". {safe(told.message)}" if told.message else ""
    return f"Update to release {safe(told.release)}: {safe(where)}: {', '.join(counted)}{why}"


def _fail_if_it_did(told: ClusterUpdate) -> None:
    if told.state == "failed":
        raise CorralError(
            "UPDATE_FAILED", "The other machines keep their release. Look: corral cluster update-progress"
        )
