"""What is true on this host, whatever Corral says: first processes, mounts, networks, and rows of the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from corral.agent.drivers.host import mount_points
from corral.agent.drivers.networks import Networks
from tests.e2e.stack import Machine, Stack
from tests.live_server import eventually


@dataclass(frozen=True)
class Process:
    """One process of this host: never taken for another, for its start time is part of it."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        return started(self.pid) == self.started


def started(pid: int) -> str:
    """Return the start time of a process in ticks, "" when it is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def first_processes(machine: Machine) -> dict[str, list[Process]]:
    """Return, for each allocation whose containers run on this machine, their first processes."""
    found: dict[str, list[Process]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        words = command_line(int(folder.name))
        if not words[0].endswith("conmon") or not any(str(machine.folder) in word for word in words):
            continue
        allocation = words[words.index("-n") + 1].removeprefix("corral-")
        try:
            children = (folder / "task" / folder.name / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            if Path(command_line(child)[0]).name not in ("", "runc", "conmon"):
                found.setdefault(allocation, []).append(Process(child, started(child)))
    return found


def first_process(stack: Stack, machine: Machine, name: str) -> Process:
    """Return the one first process of a compute cluster's container."""
    (process,) = first_processes(machine)[allocation_of(stack, name)]
    return process


def service_pid(machine: Machine) -> int | None:
    """Return the machine's Podman service, None when it does not run."""
    for folder in Path("/proc").glob("[0-9]*"):
        words = command_line(int(folder.name))
        if "service" in words and "system" in words and any(str(machine.folder) in word for word in words):
            return int(folder.name)
    return None


def stored(machine: Machine) -> set[str]:
    """Return the allocations that have a folder on this machine."""
    folder = machine.folder / "podman" / "allocations"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def left(machine: Machine, but: set[str]) -> list[str]:
    """Return what is on this host of allocations other than `but`: containers, folders, mounts, networks, records."""
    state = (machine.folder / "podman").resolve()
    networks = Networks(state, machine_id(machine), "10.213.0.0/16")
    mounts = mount_points(Path("/proc/self/mountinfo").read_text())
    found = [f"container of {name}" for name in first_processes(machine).keys() - but]
    found += [f"folder of {name}" for name in stored(machine) - but]
    found += [f"mount {p}" for p in mounts if p.startswith(f"{state}/alloc") and not any(name in p for name in but)]
    ours = {networks.netns(name).name for name in but}
    attached = (state / "networks").glob("*.json")
    found += [f"network {path.name}" for path in attached if not any(name in path.read_text() for name in but)]
    found += [f"namespace {n}" for n in namespaces(machine) if n not in ours]
    return found + [f"record {name}" for name in records(machine) - but]


def namespaces(machine: Machine) -> set[str]:
    """Return the network namespaces on this host of any allocation that this site ever made."""
    networks = Networks((machine.folder / "podman").resolve(), machine_id(machine), "10.213.0.0/16")
    ever = (networks.netns(str(id)) for (id,) in rows(machine.stack, "select id from allocations"))
    return {path.name for path in ever if path.exists()}


def records(machine: Machine) -> set[str]:
    """Return the allocations that the agent has a record of."""
    return {path.stem for path in (machine.folder / "work").glob("*.json")}


def machine_id(machine: Machine) -> str:
    ((id,),) = rows(machine.stack, "select id from machines where name = ?", machine.name)
    return str(id)


def rows(stack: Stack, query: str, *values: object) -> list[tuple[object, ...]]:
    """Return rows of the site's database, whether or not it runs."""
    db = sqlite3.connect(stack.folder / "site.db", timeout=10)
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.close()


def live(stack: Stack) -> dict[str, str]:
    """Return the allocations that hold something now: id -> name of the compute cluster."""
    query = "select a.id, w.name from allocations a join workloads w on w.id = a.workload_id"
    query += " where a.released_at is null"
    return {str(id): str(name) for id, name in rows(stack, query)}


def allocation_of(stack: Stack, name: str) -> str:
    (id,) = (id for id, known in live(stack).items() if known == name)
    return id


def settled(stack: Stack, machine: Machine, *names: str) -> dict[str, list[Process]]:
    """Wait until exactly these compute clusters hold something and run once each, and nothing else is left.

    Returns the first processes by name.
    """

    def check() -> dict[str, list[Process]] | None:
        holding = live(stack)
        running = first_processes(machine)
        good = (
            sorted(holding.values()) == sorted(names)
            and running.keys() == holding.keys()
            and all(len(found) == 1 for found in running.values())
            and left(machine, set(holding)) == []
        )
        return {holding[id]: found for id, found in running.items()} if good else None

    try:
        found = eventually(lambda: (check() or {}) if names else check() is not None, 60)
    except AssertionError:
        raise AssertionError(
            f"holding {live(stack)}, running {first_processes(machine)}, left {left(machine, set(live(stack)))}; "
            f"{machine.log[-3000:]}"
        ) from None
    return found if isinstance(found, dict) else {}
