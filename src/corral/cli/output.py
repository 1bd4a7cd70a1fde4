"""What people and programs see: tables, details, JSON, errors. Everything foreign goes through `safe`.

Machines, tenants and logs say what they like: control characters, ANSI sequences and marks that
turn text round are shown as escapes, never sent to a terminal. Rich is imported only to draw on one.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import click

from corral.domain.ids import HIDDEN


def safe(value: object) -> str:
    """Return `value` on one line, with every character that does not show as itself escaped."""
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in HIDDEN else c for c in text)


def safe_line(text: str) -> str:
    """Like `safe`, for a line of a log: tabs stay."""
    return "\t".join(safe(part) for part in text.split("\t"))


def _escape(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


@dataclass(frozen=True)
class Column:
    """One column: its heading, how to read it from a row of the API, and how to show it."""

    title: str
    value: Callable[[dict[str, Any]], object]
    right: bool = False
    style: Callable[[str], str] | None = None
    """Colour by what is shown, on terminals."""
    drop: int = 0
    """On a terminal that is too narrow the columns with the highest number go first; 0: never."""
    flow: bool = False
    """Long text: folded to what is left of the terminal's width."""


def column(title: str, path: str, **how: Any) -> Column:
    """A column that shows the field at `path` (dots go down into objects); `how`: the fields of `Column`."""
    return Column(title, lambda row: field(row, path), **how)


def field(row: Any, path: str) -> Any:
    for key in path.split("."):
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


def first_of(names: Sequence[str], left_out: int) -> str:
    """Return names for people, and how many more there are."""
    return shown(list(names)) + (f" and {left_out} more" if left_out else "")


def shown(value: object) -> str:
    """Return a value for people: `-` for nothing, yes/no, lists with commas, safe."""
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{safe(k)}={shown(v)}" for k, v in value.items())
    return safe(value)


STATE_STYLES = {
    "up": "green",
    "active": "green",
    "down": "red",
    "failed": "red",
    "out_of_sync": "yellow",
    "provisioning": "cyan",
    "idle": "cyan",
    "terminated": "dim",
    "sold out": "yellow",
    "available": "green",
    "ok": "green",
    "warning": "yellow",
    "bad": "red",
}


def state_style(text: str) -> str:
    return STATE_STYLES.get(text.lower().split(" ")[0].rstrip(":,"), STATE_STYLES.get(text.lower(), ""))


def age(text: object) -> str:
    """Return how long ago an RFC 3339 time was: 5s, 12m, 3h, 4d."""
    if not isinstance(text, str):
        return "-"
    try:
        then = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return safe(text)
    return duration((datetime.now(timezone.utc) - then).total_seconds())


def until(text: object) -> str:
    """Return how long there is until an RFC 3339 time, `-` for none, `over` when it has passed."""
    if not isinstance(text, str):
        return "-"
    left = (datetime.fromisoformat(text.replace("Z", "+00:00")) - datetime.now(timezone.utc)).total_seconds()
    return f"in {duration(left)}" if left > 0 else "over"


def duration(seconds: float) -> str:
    seconds = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size * 2 or (seconds >= size and unit == "d"):
            return f"{round(seconds / size)}{unit}"
    return f"{seconds}s"


def gib(mib: object) -> str:
    return f"{round(mib / 1024, 1):g} GiB" if isinstance(mib, (int, float)) else "-"


def wants_json() -> bool:
    return bool(click.get_current_context().find_root().meta.get("corral.json"))


def emit(data: Any, draw: Callable[[], None]) -> None:
    """Print `data` as JSON where that was asked for; else draw it for people."""
    if wants_json():
        print_json(data)
    else:
        draw()


def print_json(data: Any) -> None:
    # ensure_ascii escapes every control and direction mark but DEL.
    say(json.dumps(data, indent=2, ensure_ascii=True).replace("\x7f", "\\u007f"))


def print_json_line(data: Any) -> None:
    """One object a line: for what goes on (events, logs)."""
    say(json.dumps(data, ensure_ascii=True).replace("\x7f", "\\u007f"))


def say(text: str = "") -> None:
    """Print a line that is already safe, and hand it over at once."""
    print(text, flush=True)


def note(text: str) -> None:
    """Tell people something beside the result: on stderr."""
    print(text, file=sys.stderr, flush=True)


def colour() -> bool:
    """Return whether stdout is a terminal that takes ANSI."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: Iterable[dict[str, Any]], columns: Sequence[Column], empty: str = "Nothing here.") -> None:
    """Draw rows: on a terminal fitted to its width; piped, as plain columns for grep and awk, nothing cut off."""
    cells = [[shown(column.value(row)) for column in columns] for row in rows]
    if not cells:
        note(empty)
    elif colour():
        from corral.cli.drawing import draw

        draw(cells, columns)
    else:
        _plain_table(cells, columns)


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Draw one thing: a name and a value a line; what has no value is left out."""
    lines = [(name, shown(value)) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        say(f"{name:<{width}}  {value}")


def widths(cells: list[list[str]], columns: Sequence[Column]) -> list[int]:
    """Return the columns that each column takes up."""
    every = [[column.title for column in columns], *cells]
    return [max(width(row[i]) for row in every) for i in range(len(columns))]


def _plain_table(cells: list[list[str]], columns: Sequence[Column]) -> None:
    sizes = widths(cells, columns)
    for row in ([column.title for column in columns], *cells):
        parts = [_pad(text, sizes[i], columns[i].right) for i, text in enumerate(row)]
        say("  ".join(parts).rstrip())


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, size: int, right: bool) -> str:
    gap = " " * (size - width(text))
    return gap + text if right else text + gap
