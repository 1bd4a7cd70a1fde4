"""The documentation says what the code does: tables, links, commands, and nothing that must not be there."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from corral.cli.root import root
from corral.domain.errors import CODES
from corral.domain.events import TYPES
from corral.server.config import Config
from docs import reference

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = (ROOT / "docs/events-and-errors.md").read_text("utf-8")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FORBIDDEN = re.compile(
    r"/wor[k]/|/home/\w|docker\.io|ghcr\.io|quay\.io|nvcr\.io|gcr\.io|registry-1|\bTODO\b|\bFIXME\b", re.IGNORECASE
)


def each_page() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# -- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_what_the_code_has(name: str) -> None:
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert text == reference.rendered(text), "run: make reference"


def test_every_table_stands_on_a_page() -> None:
    pages = "".join((ROOT / "docs" / name).read_text("utf-8") for name in reference.PAGES)
    assert [name for name in reference.TABLES if f"<!-- begin {name} -->" not in pages] == []


def test_every_code_type_and_setting_is_documented() -> None:
    wanted = [*CODES, *TYPES, *(field.name for field in dataclasses.fields(Config))]
    assert [word for word in wanted if f"`{word}`" not in REFERENCE] == []


def test_every_environment_variable_is_documented_and_no_other() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"[\"' ]_?(CORRAL_[A-Z_]*[A-Z])\b", source))
    assert used == set(re.findall(r"`(CORRAL_[A-Z_]+)`", REFERENCE))


# -- links -----------------------------------------------------------------------------------


@each_page()
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert [link for link in _links(page) if not _resolves(page, link)] == []


def _links(page: Path) -> Iterator[str]:
    text = _FENCE.sub("", page.read_text("utf-8"))
    return (link for link in _LINK.findall(text) if not link.startswith(("https://", "http://", "mailto:")))


def _resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_reached_from_the_readme() -> None:
    found, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in found:
            continue
        found.add(page)
        linked = ((page.parent / link.partition("#")[0]).resolve() for link in _links(page))
        left += [path for path in linked if path.suffix == ".md"]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in found] == []


# -- commands --------------------------------------------------------------------------------


def _commands(page: Path) -> Iterator[list[str]]:
    """Yield the words after each `corral` that begins a command of a shell block."""
    for kind, block in _FENCE.findall(page.read_text("utf-8")):
        lines = block.replace("\\\n", " ").splitlines() if kind == "sh" else []
        for line in lines:
            for words in _simple_commands(line):
                if words[:1] == ["corral"]:
                    yield words[1:]


def _simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) <= set("();<>|&"):
            yield words
            words = []
        elif words or token not in ("do", "sudo"):
            words.append(token)


def parsed(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command line as `corral` would, running nothing. Errors: `click.UsageError`."""
    monkeypatch.setattr(click.Option, "prompt_for_value", lambda *_: "typed")
    command: click.Command = root
    name, args, parent = "corral", list(words), None
    while True:
        try:
            ctx = command.make_context(name, args, parent=parent)
        except click.exceptions.Exit:
            return  # --help and --version
        if not isinstance(command, click.Group):
            return
        found, inner, args = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert inner is not None
        name, command, parent = found or "", inner, ctx


@each_page()
def test_every_command_shown_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(variable)
    for words in _commands(page):
        try:
            parsed(words, monkeypatch)
        except click.UsageError as error:
            pytest.fail(f"corral {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize(
    "line", ["nothing", "compute create", "ssh", "machine list --nothing", "compute create a --gpus x"]
)
def test_a_command_that_is_none_is_noticed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError):
        parsed(line.split(), monkeypatch)


def test_commands_are_found_in_the_pages() -> None:
    assert sum(1 for page in PAGES for _ in _commands(page)) > 60


# -- what must not be there ------------------------------------------------------------------


@each_page()
def test_no_path_of_a_machine_and_no_registry_is_named(page: Path) -> None:
    assert _FORBIDDEN.findall(page.read_text("utf-8")) == []
