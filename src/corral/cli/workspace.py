"""`corral workspace`: workspaces, their people, and what they may use of clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from corral.cli.budget import budget
from corral.cli.confirm import typed_name
from corral.cli.output import Column, age, column, details, emit, safe, say, shown, table
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.cli.topology import gpus, topology
from corral.client import config


@click.group(cls=Group)
def workspace() -> None:
    """Workspaces: people, keys to clusters, quota."""


@workspace.command("list")
@at("org")
def list_workspaces(place: Place) -> None:
    """The workspaces you may see."""
    rows = [one.raw for one in place.org.workspaces()]
    columns = [column("NAME", "slug"), column("SHOWN AS", "name"), column("YOUR PART", "part")]
    emit(rows, lambda: table(rows, columns, "No workspace yet. Admins make one: corral workspace create NAME"))


@workspace.command()
@click.argument("slug")
@click.option("--name", help="How it is shown. Default: the short name.")
@at("org")
def create(place: Place, slug: str, name: str | None) -> None:
    """Make a workspace."""
    made = place.org.create_workspace(slug, name)
    emit(
        made.raw,
        lambda: say(
            f"Made '{safe(made.slug)}'.\nPeople: corral workspace add LOGIN -w {safe(made.slug)}\n"
            f"Machines: corral workspace access grant -w {safe(made.slug)}"
        ),
    )


@workspace.command()
@click.argument("name", required=False)
@at("org", "workspace")
def show(place: Place, name: str | None) -> None:
    """One workspace and what it may use."""
    chosen = place.org.workspace(name) if name else place.workspace
    one, access = chosen.show(), [entry.raw for entry in chosen.access()]

    def draw() -> None:
        details([("name", one.slug), ("shown as", one.name), ("your part", one.part)])
        say()
        table(access, _ACCESS, "No access to a cluster. Admins give it: corral workspace access grant")

    emit({**one.raw, "access": access}, draw)


@workspace.command()
@click.argument("name")
@at("org")
def use(place: Place, name: str) -> None:
    """Make a workspace the default for your commands here."""
    place.org.workspace(name).show()
    known = config.load()
    site = known.sites.get(place.site.url, place.site)
    config.save(known.with_site(replace(site, org=place.org.name, workspace=name)))
    emit({"workspace": name}, lambda: say(f"Commands act in '{safe(name)}' from now on."))


@workspace.command()
@click.argument("name")
@click.argument("shown_as")
@at("org")
def rename(place: Place, name: str, shown_as: str) -> None:
    """Change how a workspace is shown."""
    one = place.org.workspace(name).rename(shown_as)
    emit(one.raw, lambda: say(f"'{safe(one.slug)}' is now shown as '{safe(one.name)}'."))


@workspace.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name.")
@at("org")
def delete(place: Place, name: str, yes: bool) -> None:
    """Remove a workspace in which nothing lives any more."""
    typed_name("remove the workspace", name, yes=yes)
    place.org.workspace(name).remove()
    emit({"workspace": name, "removed": True}, lambda: say(f"'{safe(name)}' is removed."))


@workspace.command()
@at("org", "workspace")
def members(place: Place) -> None:
    """The people in the workspace."""
    rows = [one.raw for one in place.workspace.members()]
    columns = [
        column("LOGIN", "login"),
        column("NAME", "name"),
        column("PART", "part"),
        Column("SINCE", lambda row: age(row["since"])),
    ]
    emit(rows, lambda: table(rows, columns, "Nobody is in it yet: corral workspace add LOGIN"))


@workspace.command()
@click.argument("login")
@click.option("--lead", is_flag=True, help="As a lead: may terminate everybody's work in it.")
@at("org", "workspace")
def add(place: Place, login: str, lead: bool) -> None:
    """Put a member of the organisation in, or change their part."""
    one = place.workspace.set_member(login, "lead" if lead else "member")
    emit(one.raw, lambda: say(f"{safe(one.login)} is {one.part} of '{safe(place.workspace.name)}'."))


@workspace.command()
@click.argument("login")
@at("org", "workspace")
def remove(place: Place, login: str) -> None:
    """Take somebody out of the workspace; their open sessions there end."""
    place.workspace.remove_member(login)
    emit({"login": login, "removed": True}, lambda: say(f"{safe(login)} is out of '{safe(place.workspace.name)}'."))


@workspace.group()
def access() -> None:
    """What the workspace may use of clusters: pools and a quota."""


_QUOTAS = [
    ("gpus", "GPUs"),
    ("vcpu", "vCPU"),
    ("ram_gib", "GiB RAM"),
    ("storage_gib", "GiB storage"),
    ("gpu_hours_month", "GPU-hours a month"),
]


def _quota(row: dict[str, Any]) -> str:
    """Return what is limited, and what is used of it."""
    quota, used = row["quota"], row["used"]
    limits = [(used[name], quota[name], unit) for name, unit in _QUOTAS if quota[name] is not None]
    models = [(used["gpu_models"].get(model, 0), most, model) for model, most in sorted(quota["gpu_models"].items())]
    said = [f"{used:g} of {most} {unit}" for used, most, unit in (*limits[:1], *models, *limits[1:])]
    return ", ".join(said) or "none"


_ACCESS = [
    column("CLUSTER", "cluster"),
    Column("POOLS", lambda row: "every machine" if row["pools"] == ["*"] else row["pools"]),
    Column("GPUS IN USE", lambda row: str(row["used"]["gpus"]), right=True),
    Column("QUOTA", _quota, flow=True),
]


@access.command("show")
@at("org", "workspace")
def show_access(place: Place) -> None:
    """The pools and the quota, by cluster."""
    rows = [one.raw for one in place.workspace.access()]
    emit(rows, lambda: table(rows, _ACCESS, "No access to a cluster. Admins give it: corral workspace access grant"))


def _models(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """Return quotas by GPU model, given as MODEL=GPUS."""
    models = {}
    for one in given:
        model, _, gpus = one.rpartition("=")
        if not model or not gpus.isascii() or not gpus.isdigit():
            raise click.BadParameter(f"{one!r} is not MODEL=GPUS, like H100=8")
        models[model] = int(gpus)
    return models


_MOST = click.IntRange(0)


@access.command()
@click.option("--pool", "pools", multiple=True, help="A pool it may use; repeatable. Default: every machine (*).")
@click.option("--gpus", type=_MOST, help="At most so many GPUs at once. Default, of each: no limit.")
@click.option(
    "--gpu-model", "gpu_models", multiple=True, metavar="MODEL=GPUS", callback=_models, help="Of a model; repeatable."
)
@click.option("--vcpu", type=_MOST, help="At most so many vCPU at once.")
@click.option("--ram-gib", type=_MOST, help="At most so much RAM at once.")
@click.option("--storage-gib", type=_MOST, help="At most so much storage at once.")
@click.option("--gpu-hours", "gpu_hours_month", type=_MOST, help="At most so many GPU-hours in a month (UTC).")
@at("org", "workspace", "cluster")
def grant(place: Place, pools: tuple[str, ...], **quota: Any) -> None:
    """Set what the workspace may use of a cluster; it replaces what was set before. What runs keeps running."""
    one = place.workspace.set_access(place.cluster.name, pools or ("*",), quota)
    what = "every machine" if one.pools == ["*"] else f"pools {shown(one.pools)}"
    limit = _quota(one.raw)
    quotas = "no quota" if limit == "none" else f"quota: {limit}"
    emit(
        one.raw, lambda: say(f"'{safe(place.workspace.name)}' may use {what} of '{safe(one.cluster)}', {safe(quotas)}.")
    )


@access.command()
@at("org", "workspace", "cluster")
def revoke(place: Place) -> None:
    """Take a cluster away from the workspace; refused while its work lives there."""
    name = place.cluster.name
    place.workspace.revoke_access(name)
    emit(
        {"cluster": name, "revoked": True},
        lambda: say(f"'{safe(place.workspace.name)}' may not use '{safe(name)}' any more."),
    )


workspace.add_command(budget)
workspace.add_command(gpus)
workspace.add_command(topology)
