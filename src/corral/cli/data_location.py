"""`corral machine data-location`: where a machine may keep drive copies."""

from __future__ import annotations

from collections.abc import Sequence

import click

from corral.cli.output import Column, column, emit, gib, safe, say, table
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.machine_models import DataLocation, DataLocationAnswer, Disk

GIB = 1 << 30


@click.group("data-location", cls=Group)
def data_location() -> None:
    """The folder on a machine where drive copies may be kept."""


_DISKS = [
    column("DISK", "mount"),
    column("DEVICE", "device"),
    column("KIND", "kind"),
    Column("FREE", lambda row: gib(row["free_mib"]), right=True),
    Column("SIZE", lambda row: gib(row["size_mib"]), right=True),
    Column("", lambda row: _marks(row["os"], row["recommended"])),
]


def _marks(os: bool, recommended: bool) -> str:
    marks = ["recommended"] * recommended + ["holds the operating system"] * os
    return ", ".join(marks)


def disk_lines(disks: Sequence[Disk]) -> list[str]:
    """Return the disks in short, for a machine's details."""
    lines = []
    for disk in disks:
        marks = _marks(disk.os, disk.recommended)
        lines.append(f"{disk.mount} {gib(disk.free_mib)} of {gib(disk.size_mib)} free{f' ({marks})' if marks else ''}")
    return lines


def location_line(location: DataLocation | None) -> str:
    """Return in one line where drives are kept and how that stands."""
    if location is None:
        return "none"
    most = f", at most {location.max_bytes / GIB:g} GiB" if location.max_bytes else ""
    why = f": {location.message}" if location.message else ""
    return f"{location.path} on {location.mount}{most}, {location.copies} drives, {location.state}{why}"


@data_location.command()
@click.argument("name")
@at("org", "cluster")
def show(place: Place, name: str) -> None:
    """The machine's disks, and where its drive copies are kept."""
    found = place.cluster.machine(name)
    emit(
        {"disks": found.raw["disks"], "data_location": found.raw["data_location"]},
        lambda: _draw(found.disks, found.data_location),
    )


def _draw(disks: Sequence[Disk], location: DataLocation | None) -> None:
    say(f"Drive copies: {safe(location_line(location))}")
    table([disk.raw for disk in disks], _DISKS, "The machine has reported no disk that would do.")


@data_location.command()
@click.argument("name")
@click.argument("path")
@click.option("--max-size", type=click.FloatRange(min=0), default=0, metavar="GIB", help="Most that copies may take.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would do.")
@at("org", "cluster")
def choose(place: Place, name: str, path: str, max_size: float, dry_run: bool) -> None:
    """Choose the folder PATH on a disk of the machine; it is made if missing. Copies elsewhere stay where they are."""
    told = place.cluster.choose_data_location(name, path, max_bytes=round(max_size * GIB), dry_run=dry_run)
    emit(told.raw, lambda: _say_chosen(told))


def _say_chosen(told: DataLocationAnswer) -> None:
    line = safe(location_line(told.data_location))
    if told.dry_run:
        say(f"Would do: {line}")
        return
    say(f"{safe(told.name)}: {line}. Look again: corral machine data-location show {safe(told.name)}")


@data_location.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only say whether it can be forgotten.")
@at("org", "cluster")
def forget(place: Place, name: str, dry_run: bool) -> None:
    """Forget the folder; nothing on the disk is removed. Refused while the machine holds drive copies."""
    told = place.cluster.forget_data_location(name, dry_run=dry_run)
    can = "would have no data location any more" if dry_run else "has no data location"
    emit(told.raw, lambda: say(f"{safe(told.name)} {can}; work that needs a drive waits."))
