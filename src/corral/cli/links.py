"""One-time links as people hand them over: shown once, never in an answer again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.cli.output import emit, note, safe, say, until
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.models import NewLink


def draw_link(made: NewLink, what: str) -> None:
    """Show a new link and what it does."""
    if made.link is None:
        raise CorralError(
            "SECRET_LOST", "The link was made, but its secret was lost on the way. Revoke it, and make another."
        )
    link = made.link

    def draw() -> None:
        note(f"{what}. It works once and expires {until(made.raw['expires_at'])}. Give it to them alone:")
        say(f"corral login '{safe(link)}'")

    emit(made.raw, draw)
