"""What people see: foreign text never reaches a terminal raw, tables fit, JSON is the API's own."""

from __future__ import annotations

import json
import unicodedata

import pytest

from corral.cli import output, run
from corral.cli.output import Column, column, safe, safe_line, shown
from corral.client.errors import CorralError
from corral.domain.ids import HIDDEN

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",  # clears the screen, sets the title
    "a\rb",  # overwrites the line
    "\x9b31m",  # CSI as one C1 character
    "\u202egnp.exe",  # right-to-left override
    "\u2066isolated\u2069",
    "zero\u200bwidth",
    "\ufeffbom",
    "line\u2028separator",
    "\ud800",  # half of a pair
    "\U000e0041tag",
    "del\x7f",
    "nul\x00",
]


def test_what_is_not_named_is_counted() -> None:
    assert output.first_of(["a", "b"], 0) == "a, b"
    assert output.first_of(["a", "b"], 3) == "a, b and 3 more"
    assert output.first_of([], 0) == "-"


def test_of_a_refusals_details_what_there_is_none_of_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    details = {"quota": "gpu_hours_month", "month": None, "in_use": 0, "field": "gpus"}
    run._show(CorralError("QUOTA_EXCEEDED", "Too much.", details), as_json=False)
    printed = capsys.readouterr().err.splitlines()
    assert printed[:3] == ["error: QUOTA_EXCEEDED: Too much.", "  quota: gpu_hours_month", "  in_use: 0"]
    assert not [line for line in printed if "month:" in line or "field" in line]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_does_not_show_as_itself_is_escaped(text: str) -> None:
    cleaned = safe(text)
    assert not any(unicodedata.category(char) in HIDDEN for char in cleaned)
    assert "\\" in cleaned
    assert not any(unicodedata.category(char) in HIDDEN - {"Cc"} for char in safe_line(text))


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("plain", "Zoë – 日本語 🚀", "a b"):
        assert safe(text) == text
    assert safe_line("a\tb") == "a\tb"


def test_nested_values_are_escaped_too() -> None:
    assert "\x1b" not in shown(["\x1b[0m", {"\x1b": "\x1b"}])


def test_a_piped_table_has_no_ansi_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "n" * 300, "gpus": 8}, {"name": "\x1b[31m日本", "gpus": 16}]
    output.table(rows, [column("NAME", "name"), column("GPUS", "gpus", right=True)])
    lines = capsys.readouterr().out.splitlines()
    assert "n" * 300 in lines[1] and "\x1b" not in "".join(lines)
    # Wide characters take two columns: the right edge is the same for the eye.
    assert lines[2].endswith("16") and len(lines[2]) == len(lines[1]) - 2


def test_an_empty_list_says_what_to_do_and_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    output.table([], [column("NAME", "name")], "Make one: corral …")
    captured = capsys.readouterr()
    assert captured.out == "" and "Make one" in captured.err


@pytest.mark.parametrize("width", [40, 200])
def test_a_terminal_table_cuts_nothing_off(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(output, "colour", lambda: True)
    row = {"name": "machine-with-a-long-name", "state": "up", "address": "192.0.2.1", "gpus": "8 of 8 free"}
    columns = [column("NAME", "name"), column("STATE", "state", style=output.state_style)]
    output.table([row], [*columns, column("ADDRESS", "address"), column("GPUS", "gpus")])
    out = capsys.readouterr().out
    for value in row.values():
        assert value in out
    assert all(len(line.rstrip()) <= width for line in out.splitlines())


def test_markup_in_foreign_text_is_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "colour", lambda: True)
    output.table([{"name": "[bold]x[/bold] :rocket:"}], [Column("NAME", lambda row: row["name"])])
    assert "[bold]x[/bold] :rocket:" in capsys.readouterr().out


def test_json_escapes_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json(HOSTILE)
    text = capsys.readouterr().out
    assert json.loads(text) == HOSTILE
    assert all(char == "\n" or " " <= char <= "~" for char in text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (86399, "24h"), (86400, "1d"), (-5, "0s")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_columns_that_matter_least_go_first_and_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "25")
    monkeypatch.setattr(output, "colour", lambda: True)
    row = {"name": "machine-one", "address": "192.0.2.1", "since": "12m", "why": "all of its GPUs are in use now"}
    columns = [column("NAME", "name"), column("ADDRESS", "address", drop=2), column("SINCE", "since", drop=1)]
    output.table([row], columns)
    captured = capsys.readouterr()
    assert "machine-one" in captured.out and "12m" in captured.out and "192.0.2.1" not in captured.out
    assert "ADDRESS" in captured.err and "SINCE" not in captured.err


def test_long_text_is_folded_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(output, "colour", lambda: True)
    output.table([{"n": "one", "w": "word " * 20}], [column("N", "n"), column("W", "w", flow=True)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3 and all(len(line.rstrip()) <= 40 for line in lines)
    assert "".join(lines).count("word") == 20
