"""`corral token`: API tokens for programs. Their secret is shown once."""

from __future__ import annotations

import click

from corral.cli.output import Column, age, column, emit, note, safe, say, table, until
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client.errors import CorralError
from corral.domain.permissions import SCOPES

_DAY_S = 86400


@click.group(cls=Group)
def token() -> None:
    """API tokens for programs (set CORRAL_URL and CORRAL_TOKEN)."""


@token.command(epilog="\b\nScopes:\n" + "\n".join(f"{name:<16} {what}" for name, what in SCOPES.items()))
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(list(SCOPES)), help="Repeatable. Default: all.")
@click.option("--days", type=click.IntRange(1, 1825), default=90, show_default=True, help="How long it works.")
@at()
def create(place: Place, name: str, scopes: tuple[str, ...], days: int) -> None:
    """Make a token and print it: it is shown this once."""
    made = place.corral.create_token(name, scopes or ("all",), days * _DAY_S)
    if made.token is None:
        place.corral.revoke_token(made.id)
        raise CorralError("SECRET_LOST", "The token was made, but its secret was lost on the way. Run this again.")
    text = made.token

    def draw() -> None:
        note(f"Token '{safe(made.name)}', shown this once; it expires {until(made.raw['expires_at'])}:")
        say(safe(text))

    emit(made.raw, draw)


@token.command("list")
@at()
def list_tokens(place: Place) -> None:
    """Your tokens that work; never their secret."""
    rows = [one.raw for one in place.corral.tokens()]
    columns = [
        column("TOKEN", "public_id"),
        column("NAME", "name"),
        column("SCOPES", "scopes"),
        Column("AGE", lambda row: age(row["created_at"])),
        Column("LAST USED", lambda row: age(row["last_used_at"])),
        Column("EXPIRES", lambda row: until(row["expires_at"])),
    ]
    emit(rows, lambda: table(rows, columns, "No token."))


@token.command()
@click.argument("id")
@at()
def revoke(place: Place, id: str) -> None:
    """Revoke a token, by the id that the list shows. It stops working at once."""
    place.corral.revoke_token(id)
    emit({"id": id, "revoked": True}, lambda: say("Revoked."))
