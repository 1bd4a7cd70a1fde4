"""CSV that a spreadsheet may open: a cell never begins a formula (facts: CSV formula characters are escaped)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

MEDIA_TYPE = "text/csv; charset=utf-8"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What programs take for the beginning of a formula, full-width forms too."""


def cell(value: object) -> str:
    """Return a value as a cell's text. Numbers stay numbers; text that could begin a formula gets an apostrophe."""
    if value is None:
        return ""
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def line(values: Iterable[object]) -> bytes:
    """Return one row, quoted as RFC 4180 says, with its end of line."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow([cell(value) for value in values])
    return out.getvalue().encode("utf-8", "replace")
