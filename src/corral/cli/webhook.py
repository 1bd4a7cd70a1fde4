"""`corral webhook`: where an organisation's events and alerts are posted, signed."""

from __future__ import annotations

import click

from corral.cli.alert import until
from corral.cli.output import Column, age, column, emit, note, safe, say, table
from corral.cli.output import until as time_until
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.alerts import Delivery, WebhookWithSecret
from corral.client.errors import CorralError


@click.group(cls=Group)
def webhook() -> None:
    """Webhooks: events and alerts posted to a program of yours, signed."""


@webhook.command()
@click.argument("name")
@click.argument("url")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="'cluster.node.*'; repeatable. None: alerts only.")
@at("org")
def create(place: Place, name: str, url: str, types: tuple[str, ...]) -> None:
    """Make a webhook and print the secret that its deliveries are signed with: it is shown this once."""
    made = place.org.webhooks.create(name, url, types)
    if made.secret is None:
        place.org.webhooks.remove(made.id)
        raise CorralError("SECRET_LOST", "The webhook was made, but its secret was lost on the way. Run this again.")
    emit(made.raw, lambda: _show_secret(made))


def _show_secret(made: WebhookWithSecret) -> None:
    note(f"Webhook '{safe(made.name)}' ({safe(made.id)}). Its secret, shown this once:")
    say(safe(made.secret))


@webhook.command("list")
@at("org")
def list_webhooks(place: Place) -> None:
    """The organisation's webhooks; never their secrets."""
    rows = [one.raw for one in place.org.webhooks.list()]
    columns = [
        column("ID", "id"),
        column("NAME", "name"),
        column("URL", "url", flow=True),
        Column("TYPES", lambda row: row["types"] or "alerts only"),
        Column("STATE", _state, flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "No webhook yet: corral webhook create NAME URL"))


def _state(row: dict[str, object]) -> str:
    if row["problem"] or not row["enabled"]:
        return (
            f"disabled: {row['problem']}"
            if row["problem"] and not row["enabled"]
            else str(row["problem"] or "disabled")
        )
    return f"failing for {age(row['failing_since'])}" if row["failing_since"] else "enabled"


@webhook.command()
@click.argument("id")
@click.option("--name", help="How it is shown.")
@click.option("--url", help="Where it posts to.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Replaces the types; repeatable.")
@click.option("--enable/--disable", "enabled", default=None, help="Disabling drops what waits.")
@click.option("--new-secret", is_flag=True, help="Make another secret and print it; the old one ends at once.")
@at("org")
def change(
    place: Place, id: str, types: tuple[str, ...], enabled: bool | None, new_secret: bool, **texts: str | None
) -> None:
    """Change a webhook; what is not named is kept."""
    given = {**texts, "types": list(types) or None, "enabled": enabled, "new_secret": new_secret or None}
    one = place.org.webhooks.change(id, **{name: value for name, value in given.items() if value is not None})
    emit(one.raw, lambda: _show_secret(one) if one.secret else say(f"Webhook '{safe(one.name)}' is changed."))


@webhook.command()
@click.argument("id")
@at("org")
def remove(place: Place, id: str) -> None:
    """Remove a webhook; what waits for it is dropped."""
    place.org.webhooks.remove(id)
    emit({"id": id, "removed": True}, lambda: say("Removed."))


@webhook.command()
@click.argument("id")
@at("org")
def test(place: Place, id: str) -> None:
    """Send a test event, and say how that went."""
    sent = place.org.webhooks.test(id)

    def tried() -> Delivery | None:
        found = (one for one in place.org.webhooks.deliveries(id) if one.id == sent.delivery)
        return next((one for one in found if one.attempts or one.state != "waiting"), None)

    after = until(tried)
    if after.state != "delivered":
        raise CorralError("NOT_TOLD", f"{after.error} It is tried again for about a day.")
    emit(after.raw, lambda: say(f"It answered {after.status}."))


@webhook.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@at("org")
def deliveries(place: Place, id: str, limit: int) -> None:
    """What was, or is to be, delivered, the newest first."""
    rows = [one.raw for one, _ in zip(place.org.webhooks.deliveries(id), range(limit), strict=False)]
    columns = [
        column("ID", "webhook_id"),
        column("TYPE", "type"),
        Column("AGE", lambda row: age(row["created_at"])),
        column("STATE", "state"),
        Column("TRIED", lambda row: str(row["attempts"]), right=True),
        Column("AGAIN", lambda row: time_until(row["next_at"])),
        Column("ANSWER", lambda row: row["error"] or row["status"], flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "Nothing was delivered yet."))
