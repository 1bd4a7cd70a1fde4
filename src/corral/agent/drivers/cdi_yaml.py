"""Reads CDI specifications written as YAML: the block style that `nvidia-ctk cdi generate` writes.

Mappings, sequences and plain or quoted scalars by indentation; no anchors, tags, block
scalars or documents in a row. Anything else is a ValueError, never a guess: the agent is
pure Python and cannot carry a YAML library with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(r"(?P<key>\"[^\"]*\"|'[^']*'|[^\s#\"'\[\]{}&*!|>%@`,:-][^#:]*?)\s*:(?:\s+(?P<value>.*))?$")
_INTEGER = re.compile(r"[-+]?\d+")


@dataclass
class _Line:
    number: int
    indent: int
    text: str


def load(text: str) -> Any:
    """Return the document: dicts, lists, str, int, bool, None."""
    lines = [line for n, raw in enumerate(text.splitlines(), 1) if (line := _line(n, raw)) is not None]
    if not lines:
        return None
    value, rest = _block(lines, lines[0].indent)
    if rest:
        raise ValueError(f"line {rest[0].number}: unexpected indentation")
    return value


def _line(number: int, raw: str) -> _Line | None:
    text = raw.strip()
    if not text or text.startswith("#") or text == "---":
        return None
    indent = len(raw) - len(raw.lstrip(" "))
    if raw[indent] == "\t":
        raise ValueError(f"line {number}: indented by a tab")
    return _Line(number, indent, text)


def _block(lines: list[_Line], indent: int) -> tuple[Any, list[_Line]]:
    if lines[0].text == "-" or lines[0].text.startswith("- "):
        return _sequence(lines, indent)
    if _KEY.fullmatch(lines[0].text):
        return _mapping(lines, indent)
    return _scalar(lines[0].text, lines[0].number), lines[1:]


def _sequence(lines: list[_Line], indent: int) -> tuple[list[Any], list[_Line]]:
    items: list[Any] = []
    while lines and lines[0].indent == indent and (lines[0].text == "-" or lines[0].text.startswith("- ")):
        head = lines[0]
        inner = head.text[1:].lstrip()
        if inner:
            # "- key: value" opens a block whose indentation is where its first key stands.
            at = indent + len(head.text) - len(inner)
            item, lines = _block([_Line(head.number, at, inner), *lines[1:]], at)
        else:
            item, lines = _nested(lines[1:], indent)
        items.append(item)
    return items, lines


def _mapping(lines: list[_Line], indent: int) -> tuple[dict[str, Any], list[_Line]]:
    result: dict[str, Any] = {}
    while lines and lines[0].indent == indent:
        match = _KEY.fullmatch(lines[0].text)
        if match is None:
            break
        key = str(_scalar(match["key"], lines[0].number, plain_text=True))
        value = match["value"]
        if value and not value.startswith("#"):
            result[key], lines = _scalar(value, lines[0].number), lines[1:]
        else:
            result[key], lines = _nested(lines[1:], indent, same_for_sequence=True)
    return result, lines


def _nested(lines: list[_Line], indent: int, *, same_for_sequence: bool = False) -> tuple[Any, list[_Line]]:
    """Return the block below a key or a dash; a key's sequence may stand at the key's own indentation."""
    if lines and lines[0].indent > indent:
        return _block(lines, lines[0].indent)
    if same_for_sequence and lines and lines[0].indent == indent and lines[0].text.startswith("-"):
        return _sequence(lines, indent)
    return None, lines


def _scalar(text: str, number: int, *, plain_text: bool = False) -> Any:
    if text.startswith('"'):
        return json.loads(text)
    if text.startswith("'"):
        if len(text) < 2 or not text.endswith("'"):
            raise ValueError(f"line {number}: a quote is not closed")
        return text[1:-1].replace("''", "'")
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if text[0] in "&*!|>%@`[{":
        raise ValueError(f"line {number}: {text[0]} is not used in CDI specifications")
    text = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    return text if plain_text else _plain(text)


def _plain(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    return {"true": True, "false": False, "null": None, "~": None}.get(text, text)
