"""`corral alert`: alerts, and the rules that say who is told of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import click

from corral.cli.output import Column, age, column, emit, note, safe, say, shown, table
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.alerts import AlertRule
from corral.client.errors import CorralError
from corral.domain.alert_targets import SERVICES
from corral.domain.alerts import OPENING, Kind

T = TypeVar("T")
TEST_WITHIN_S = 60.0
_SERVICES = "\b\nServices that TARGET may name:\n" + "\n".join(f"{name:<10} {what}" for name, what in SERVICES.items())


@click.group(cls=Group)
def alert() -> None:
    """Alerts, and who is told of them."""


@alert.command("list")
@click.option("--open", "which", flag_value="open", help="Only those that are open.")
@click.option("--closed", "which", flag_value="closed", help="Only those that are over.")
@click.option("--kind", type=click.Choice([kind.value for kind in OPENING]), help="Of this kind.")
@click.option("--machine", metavar="NAME", help="About this machine.")
@click.option("--about", "workspace", metavar="WORKSPACE", help="About this workspace.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@at("org", "cluster")
def list_alerts(
    place: Place, which: str | None, kind: str | None, machine: str | None, workspace: str | None, limit: int
) -> None:
    """Alerts, the newest first."""
    cluster = place.cluster.name if machine is not None else None
    is_open = None if which is None else which == "open"
    found = place.org.alerts(open=is_open, kind=kind, workspace=workspace, cluster=cluster, machine=machine)
    rows = [one.raw for one, _ in zip(found, range(limit), strict=False)]
    columns = [
        column("KIND", "kind"),
        Column("STATE", lambda row: "open" if row["open"] else "closed"),
        Column("SINCE", lambda row: age(row["opened_at"])),
        Column("TIMES", lambda row: str(row["count"]), right=True),
        Column("TOLD", lambda row: age(row["told_at"])),
        column("WHAT", "title", flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No alert."))


@alert.command()
@at("org")
def rules(place: Place) -> None:
    """The rules that say who is told; targets without their secrets."""
    rows = [one.raw for one in place.org.alert_rules.list()]
    columns = [
        column("ID", "id"),
        column("NAME", "name"),
        Column("KINDS", lambda row: row["kinds"] or "every kind"),
        Column("CLUSTER", lambda row: row["cluster"] or "every cluster"),
        Column("TELLS", lambda row: row["target"] or f"webhook {row['webhook']}"),
        Column("STATE", _state, flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No rule: nobody is told. Make one: corral alert add-rule NAME TARGET"))


def _state(row: dict[str, object]) -> object:
    if not row["enabled"]:
        return "disabled"
    return row["problem"] or row["last_error"] or (f"told {age(row['last_at'])} ago" if row["last_at"] else "enabled")


@alert.command("add-rule", epilog=_SERVICES)
@click.argument("name")
@click.argument("target", required=False)
@click.option("--webhook", metavar="ID", help="Tell by this webhook instead of at TARGET.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice([kind.value for kind in Kind]), help="Repeatable. Default: all."
)
@click.option("--only-cluster", "cluster", metavar="NAME", help="Only of this cluster. Default: every one.")
@at("org")
def add_rule(
    place: Place, name: str, target: str | None, webhook: str | None, kinds: tuple[str, ...], cluster: str | None
) -> None:
    """Tell somebody of alerts: at TARGET (mailto://…, slack://…; `-` reads it from stdin), or by a webhook.

    TARGET holds what opens the service: it is kept sealed, and never shown again.
    """
    if (target is None) == (webhook is None):
        raise click.UsageError("Say who is told: either TARGET or --webhook ID.")
    if target == "-":
        target = sys.stdin.readline().strip()
    made = place.org.alert_rules.create(name, kinds=kinds, cluster=cluster, webhook=webhook, target=target)

    def draw() -> None:
        say(f"Rule '{safe(made.name)}' tells {safe(made.target or 'webhook ' + str(made.webhook))}.")
        say(f"Try it: corral alert test {safe(made.id)}")

    emit(made.raw, draw)


@alert.command("change-rule")
@click.argument("id")
@click.option("--name", help="How it is shown.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([kind.value for kind in Kind]), help="Repeatable.")
@click.option("--target", help="Tell here instead.")
@click.option("--webhook", metavar="ID", help="Tell by this webhook instead.")
@click.option("--enable/--disable", "enabled", default=None, help="A disabled rule tells nobody.")
@at("org")
def change_rule(place: Place, id: str, kinds: tuple[str, ...], enabled: bool | None, **texts: str | None) -> None:
    """Change a rule; what is not named is kept."""
    given = {**texts, "kinds": list(kinds) or None, "enabled": enabled}
    one = place.org.alert_rules.change(id, **{name: value for name, value in given.items() if value is not None})
    emit(one.raw, lambda: say(f"Rule '{safe(one.name)}' is changed."))


@alert.command("remove-rule")
@click.argument("id")
@at("org")
def remove_rule(place: Place, id: str) -> None:
    """Remove a rule: nobody is told by it any more."""
    place.org.alert_rules.remove(id)
    emit({"id": id, "removed": True}, lambda: say("Removed."))


@alert.command()
@click.argument("id")
@at("org")
def test(place: Place, id: str) -> None:
    """Send a test to whom a rule tells, and say how that went."""
    before = _rule(place, id)
    sent = place.org.alert_rules.test(id)
    if before.webhook is not None:
        note(f"Sent by its webhook. Look: corral webhook deliveries {safe(before.webhook)}")
        emit(sent.raw, lambda: None)
        return

    def tried() -> AlertRule | None:
        now = _rule(place, id)
        return now if (now.last_at, now.last_error) != (before.last_at, before.last_error) else None

    after = until(tried)
    if after.last_error:
        raise CorralError("NOT_TOLD", f"{after.last_error} It is tried again for about a day.")
    emit(after.raw, lambda: say(f"Told {shown(after.target)}."))


def _rule(place: Place, id: str) -> AlertRule:
    found = next((rule for rule in place.org.alert_rules.list() if rule.id == id), None)
    if found is None:
        raise CorralError("NOT_FOUND", "There is no such rule. See: corral alert rules", status=404)
    return found


def until(check: Callable[[], T | None]) -> T:
    """Return what `check` answers once it is something. Errors: `CorralError` when that takes too long."""
    deadline = time.monotonic() + TEST_WITHIN_S
    while (answer := check()) is None:
        if time.monotonic() > deadline:
            raise CorralError("NOT_TOLD", "It has not been sent yet. Look again later.")
        time.sleep(0.3)
    return answer
