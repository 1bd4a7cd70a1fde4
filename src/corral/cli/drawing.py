"""Tables on a terminal, with Rich: as wide as it is, and nothing cut off.

Where the columns do not fit, those that matter least go (and are named); where the rest
does not fit either, each row becomes a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corral.cli.output import Column, note, widths

GAP = 2
FLOW_MIN = 16
"""The least width at which folded text can be read."""


def draw(cells: list[list[str]], columns: Sequence[Column]) -> None:
    """Draw rows of safe text."""
    console = Console(highlight=False)
    kept = _fitting(cells, columns, console.width)
    if kept is None:
        _blocks(console, cells, columns)
        return
    _table(console, [[row[i] for i in kept] for row in cells], [columns[i] for i in kept])
    hidden = [column.title for i, column in enumerate(columns) if i not in kept]
    if hidden:
        note(f"Too narrow for: {', '.join(hidden)}")


def _fitting(cells: list[list[str]], columns: Sequence[Column], width: int) -> list[int] | None:
    """Return which columns to show; None when not even those that must be shown fit."""
    sizes = [
        min(size, FLOW_MIN) if column.flow else size
        for size, column in zip(widths(cells, columns), columns, strict=True)
    ]
    kept = list(range(len(columns)))
    while sum(sizes[i] + GAP for i in kept) - GAP > width:
        last = max(kept, key=lambda i: columns[i].drop)
        if columns[last].drop == 0:
            return None
        kept.remove(last)
    return kept


def _table(console: Console, cells: list[list[str]], columns: Sequence[Column]) -> None:
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in columns:
        drawn.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=not column.flow,
            overflow="fold",
        )
    for row in cells:
        drawn.add_row(*(_styled(text, column) for text, column in zip(row, columns, strict=True)))
    console.print(drawn)


def _blocks(console: Console, cells: list[list[str]], columns: Sequence[Column]) -> None:
    for number, row in enumerate(cells):
        if number:
            console.print()
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for text, column in zip(row, columns, strict=True):
            if text != "-":
                block.add_row(Text(column.title, style="bold"), _styled(text, column))
        console.print(block)


def _styled(text: str, column: Column) -> Text:
    # Text, not markup: what machines and tenants said is never obeyed.
    return Text(text, style=column.style(text) if column.style else "")
