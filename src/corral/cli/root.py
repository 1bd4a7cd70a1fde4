"""`corral`: the commands, each loaded only when it is run, so that help comes at once (spec 50).

`--json` is understood before and after the command, at every level.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from corral import __version__


class Lazy(NamedTuple):
    """Where a command is: `module:attribute`, and its line in the help."""

    where: str
    help: str


COMMANDS: Mapping[str, Lazy] = {
    "login": Lazy("corral.cli.login:login", "Log in to a site by a one-time link or a password."),
    "logout": Lazy("corral.cli.login:logout", "Forget this site here, and end the token."),
    "org": Lazy("corral.cli.org:org", "Organisations and their members."),
    "workspace": Lazy("corral.cli.workspace:workspace", "Workspaces, their members, their access to clusters."),
    "cluster": Lazy("corral.cli.cluster:cluster", "Clusters and join tokens."),
    "machine": Lazy("corral.cli.machine:machine", "Machines: list, show, cordon, update, remove."),
    "reservation": Lazy("corral.cli.reservation:reservation", "Machines kept for some, or for nobody, over a window."),
    "compute": Lazy("corral.cli.compute:compute", "Compute clusters: create, list, show, logs, terminate."),
    "ssh": Lazy("corral.cli.ssh:ssh", "Open a shell in a compute cluster, or run a command there."),
    "ssh-config": Lazy("corral.cli.ssh_config:ssh_config", "Write Host blocks for plain ssh, scp, rsync and IDEs."),
    "ssh-key": Lazy("corral.cli.ssh_key:ssh_key", "Your SSH keys."),
    "forward": Lazy("corral.cli.forward:forward", "Reach a port inside a compute cluster."),
    "events": Lazy("corral.cli.events:events", "What happened to machines and workloads."),
    "audit": Lazy("corral.cli.audit:audit", "Who did what."),
    "usage": Lazy("corral.cli.usage:usage", "What was used and what it costs."),
    "alert": Lazy("corral.cli.alert:alert", "Alerts, and who is told of them."),
    "webhook": Lazy("corral.cli.webhook:webhook", "Events and alerts posted to a program of yours, signed."),
    "token": Lazy("corral.cli.token:token", "API tokens for programs."),
    "site": Lazy("corral.cli.site:site", "Run a site: serve, migrate, doctor."),
    "agent": Lazy("corral.cli.agent:agent", "The program on a machine: join, run."),
    "sim": Lazy("corral.cli.sim:sim", "Simulated machines against a running site."),
    "demo": Lazy("corral.demo:demo", "A whole site on this machine, to try Corral."),
}

EXIT_CODES = """\b
Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 not found;
4 not logged in or not allowed; 5 the site does not answer; 130 interrupted.
"""


def _json_option(own: list[click.Parameter]) -> list[click.Parameter]:
    if any("--json" in parameter.opts for parameter in own):
        return own
    option = click.Option(
        ["--json"], is_flag=True, expose_value=False, help="Print JSON.", callback=_ask_json, is_eager=True
    )
    return [*own, option]


def _ask_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta["corral.json"] = True


class Command(click.Command):
    """A command that takes `--json`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return _json_option(super().get_params(ctx))


class Group(click.Group):
    """A noun: its commands take `--json`, and so does it."""

    command_class = Command
    group_class = type  # a group inside a group is of this class too

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return _json_option(super().get_params(ctx))


class Root(Group):
    """Loads a noun's module when it is asked for by name, never for the list of all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=lazy.help) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]
        return names if not incomplete.startswith("-") else super().shell_complete(ctx, incomplete)


@click.group(cls=Root, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="corral", message="%(prog)s %(version)s")
def root() -> None:
    """Corral: GPU machines, shared out.

    \b
    corral login LINK              log in with the link you were given
    corral compute create NAME     carve a compute cluster from a machine
    corral ssh NAME                open a shell in it
    """
