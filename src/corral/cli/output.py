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


def column(title: str, path: str, *, right: bool = False, style: Callable[[str], str] | None = None) -> Column:
    """A column that shows the field at `path` (dots go down into objects)."""
    return Column(title, lambda row: field(row, path), right, style)


def field(row: Any, path: str) -> Any:
    for key in path.split("."):
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


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
    """Draw rows: on a terminal with Rich, folded to its width; piped, as plain columns for grep and awk."""
    cells = [[shown(column.value(row)) for column in columns] for row in rows]
    if not cells:
        note(empty)
    elif colour():
        _rich_table(cells, columns)
    else:
        _plain_table(cells, columns)


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Draw one thing: a name and a value a line; what has no value is left out."""
    lines = [(name, shown(value)) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        say(f"{name:<{width}}  {value}")


def _plain_table(cells: list[list[str]], columns: Sequence[Column]) -> None:
    every = [[column.title for column in columns], *cells]
    widths = [max(_width(row[i]) for row in every) for i in range(len(columns))]
    for row in every:
        parts = [_pad(text, widths[i], columns[i].right) for i, text in enumerate(row)]
        say("  ".join(parts).rstrip())


def _rich_table(cells: list[list[str]], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if _needed(cells, columns) > console.width:
        _records(cells, columns, console.width)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(Text(column.title), justify="right" if column.right else "left", no_wrap=True)
    for row in cells:
        styles = [column.style(text) if column.style else "" for text, column in zip(row, columns, strict=True)]
        drawn.add_row(*(Text(text, style=style) for text, style in zip(row, styles, strict=True)))
    console.print(drawn)


def _needed(cells: list[list[str]], columns: Sequence[Column]) -> int:
    every = [[column.title for column in columns], *cells]
    return sum(max(_width(row[i]) for row in every) + 2 for i in range(len(columns))) - 2


def _records(cells: list[list[str]], columns: Sequence[Column], width: int) -> None:
    """Too narrow for a table: each row as a block, nothing cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=width)
    for number, row in enumerate(cells):
        if number:
            console.print()
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for text, column in zip(row, columns, strict=True):
            if text != "-":
                style = column.style(text) if column.style else ""
                block.add_row(Text(column.title, style="bold"), Text(text, style=style))
        console.print(block)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(text))
    return gap + text if right else text + gap
