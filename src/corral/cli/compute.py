"""`corral compute`: compute clusters, from creation to termination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from corral.cli.compute_show import ROWS, draw_details, progress
from corral.cli.confirm import typed_name, warn
from corral.cli.output import column, emit, note, print_json_line, safe, safe_line, say, table, wants_json
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.errors import CorralError

STATES = ("provisioning", "active", "out_of_sync", "terminated", "failed")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """Seconds, or with a unit: 90s, 30m, 8h, 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
        if not number.isdigit():
            self.fail(f"{text!r} is no time. Write 90s, 30m, 8h or 7d.", param, ctx)
        return int(number) * _UNITS[unit]


@click.group(cls=Group)
def compute() -> None:
    """Compute clusters."""


def _resources(command: Any) -> Any:
    """What may be asked for, by creation and by explanation."""
    for option in (
        click.option(
            "--drive",
            "drives",
            multiple=True,
            metavar="NAME",
            help="A drive kept on each machine, read-only at /drives/NAME; repeatable.",
        ),
        click.option("--storage", "storage_gib", type=int, metavar="GIB", help="Default: the fair share."),
        click.option("--ram", "ram_gib", type=int, metavar="GIB", help="Default: the fair share for so many GPUs."),
        click.option("--vcpu", type=int, help="Default: the machine's fair share for so many GPUs."),
        click.option("--gpu-model", metavar="MODEL", help="Only GPUs of this model."),
        click.option("--pool", help="Only on a machine of this pool."),
        click.option("--machine", metavar="NAME", help="Only on this machine."),
        click.option("--gpus", "-g", type=int, default=0, show_default=True),
    ):
        command = option(command)
    return command


@compute.command()
@click.argument("name")
@_resources
@click.option("--image", help="Default: the site's base image.")
@click.option(
    "--ssh-key", "ssh_keys", multiple=True, metavar="NAME", help="Attach this key; repeatable. Default: all yours."
)
@click.option("--time-limit", "time_limit_seconds", type=Duration(), help="Ends by itself after this: 30m, 8h, 7d.")
@click.option(
    "--restart-policy",
    type=click.Choice(["never", "on_machine_loss"]),
    default="never",
    show_default=True,
    help="When its machine is removed by force: end as lost, or be placed again elsewhere.",
)
@click.option("--queue", "wait", is_flag=True, help="Where nothing is free now, wait in the queue.")
@click.option("--wait", "until_active", is_flag=True, help="Show its progress until it is Active.")
@at("org", "workspace", "cluster")
def create(place: Place, name: str, ssh_keys: Sequence[str], until_active: bool, **asked: Any) -> None:
    """Carve a compute cluster from a machine: corral compute create train --gpus 2 --wait"""
    made = place.workspace.create_compute_cluster(
        name, cluster=place.cluster_name, ssh_keys=list(ssh_keys) or None, **asked
    )
    if not until_active:
        where = f"on {safe(made.machine)}" if made.machine else f"waits: {safe(made.reason)}"
        emit(
            made.raw,
            lambda: say(
                f"'{safe(made.name)}' is being prepared, {where}. Watch: corral compute wait {safe(made.name)}"
            ),
        )
        return
    _until_active(place, made.name)


@compute.command()
@click.argument("name")
@at("org", "workspace")
def wait(place: Place, name: str) -> None:
    """Show a compute cluster's progress until it is Active."""
    _until_active(place, name)


def _until_active(place: Place, name: str) -> None:
    final = progress(place.workspace.compute_cluster(name).watch())
    if final.state != "active":
        raise CorralError(
            "NOT_ACTIVE",
            f"'{final.name}' is {final.state}: {final.reason or final.stop_reason or 'ended'}. "
            f"More: corral compute logs {final.name}",
        )
    emit(final.raw, lambda: say(f"'{safe(name)}' is Active on {safe(final.machine)}. Next: corral ssh {safe(name)}"))


@compute.command()
@_resources
@at("org", "workspace", "cluster")
def explain(place: Place, **asked: Any) -> None:
    """Say which machines would take an ask now, and why each other one would not. Creates nothing."""
    asked["drives"] = list(asked["drives"]) or None
    told = place.workspace.explain_placement(cluster=place.cluster_name, **asked)

    def draw() -> None:
        table(
            [answer.raw for answer in told.machines],
            [column("MACHINE", "machine"), column("TAKES IT", "takes"), column("WHY NOT", "reason", flow=True)],
            "No machine in this workspace's pools.",
        )
        if told.quota:
            say(f"Quota: {safe(told.quota)}")

    emit(told.raw, draw)


@compute.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--all", "include_ended", is_flag=True, help="Ended ones too.")
@at("org", "workspace")
def list_clusters(place: Place, state: str | None, include_ended: bool) -> None:
    """The workspace's compute clusters, newest first."""
    rows = [one.raw for one in place.workspace.compute_clusters(state, include_ended=include_ended)]
    emit(rows, lambda: table(rows, ROWS, "No compute cluster. Make one: corral compute create NAME --gpus 1"))


@compute.command()
@click.argument("name")
@at("org", "workspace")
def show(place: Place, name: str) -> None:
    """All about one compute cluster: hardware, GPUs, limits, connection, history."""
    found = place.workspace.compute_cluster(name).show()
    emit(found.raw, lambda: draw_details(found))


@compute.command()
@click.argument("name")
@click.option("--container", is_flag=True, help="The container's own output. Default: the log of its provisioning.")
@click.option("--follow", "-f", is_flag=True, help="The container's output as it comes, until Ctrl-C.")
@at("org", "workspace")
def logs(place: Place, name: str, container: bool, follow: bool) -> None:
    """The log of its provisioning, or of its container."""
    one = place.workspace.compute_cluster(name)
    if follow:
        from corral.cli.follow import container_lines

        for line in container_lines(place.site, one.stream_path):
            if wants_json():
                print_json_line({"line": line})
            else:
                say(safe_line(line))
        return
    read = one.logs("container" if container else "provisioning")
    if not read.lines:
        note("Nothing was logged yet.")
    emit(read.raw, lambda: _say_lines(read.lines))


def _say_lines(lines: Sequence[str]) -> None:
    for line in lines:
        say(safe_line(line))


@compute.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name.")
@click.option("--dry-run", is_flag=True, help="Only say what would stop.")
@click.option("--wait", is_flag=True, help="Wait until it is gone and what it held is free.")
@at("org", "workspace")
def terminate(place: Place, name: str, yes: bool, dry_run: bool, wait: bool) -> None:
    """Stop everything inside and free the resources. It cannot be undone."""
    one = place.workspace.compute_cluster(name)
    told = one.would_stop()
    if dry_run:
        emit(told.raw, lambda: _say_lines(told.stops or ["Nothing: it has ended."]))
        return
    if told.stops:
        warn(["Terminating it cannot be undone:", *(f"  - {safe(stop)}" for stop in told.stops)])
        typed_name("terminate it", told.compute_cluster.name, yes=yes)
    elif told.compute_cluster.ended_at is not None:
        emit(told.raw, lambda: say(f"'{safe(name)}' has ended already."))
        return
    done = one.terminate()
    if wait:
        final = progress(place.workspace.compute_cluster(done.compute_cluster.id).watch(("terminated", "failed")))
        emit(final.raw, lambda: say(f"'{safe(final.name)}' is {final.state}; what it held is free."))
        return
    emit(
        done.raw,
        lambda: say(f"'{safe(name)}' was told to stop. Its capacity is free when its machine says it is gone."),
    )


@compute.group()
def keys() -> None:
    """The SSH keys attached to a compute cluster."""


_KEYS = [column("NAME", "name"), column("OF", "user"), column("FINGERPRINT", "fingerprint")]


@keys.command("list")
@click.argument("name")
@at("org", "workspace")
def list_keys(place: Place, name: str) -> None:
    """The keys attached to the compute cluster NAME."""
    rows = [key.raw for key in place.workspace.compute_cluster(name).ssh_keys()]
    emit(rows, lambda: table(rows, _KEYS, f"No key is attached. Attach yours: corral compute keys attach {safe(name)}"))


@keys.command()
@click.argument("name")
@click.argument("key", nargs=-1)
@at("org", "workspace")
def attach(place: Place, name: str, key: Sequence[str]) -> None:
    """Attach your keys (names, ids or fingerprints; all of yours if none is named). They work within seconds."""
    wanted = list(key) or [mine.id for mine in place.corral.ssh_keys()]
    if not wanted:
        raise CorralError("NO_SSH_KEY", "You have no key yet. Add one: corral ssh-key add")
    rows = [one.raw for one in place.workspace.compute_cluster(name).attach_ssh_keys(wanted)]
    emit(rows, lambda: table(rows, _KEYS))


@keys.command()
@click.argument("name")
@click.argument("key", nargs=-1, required=True)
@at("org", "workspace")
def detach(place: Place, name: str, key: Sequence[str]) -> None:
    """Detach keys (names, ids or fingerprints); what was opened with them closes."""
    rows = [one.raw for one in place.workspace.compute_cluster(name).detach_ssh_keys(key)]
    emit(rows, lambda: table(rows, _KEYS, "No key is attached any more."))
