"""Writes the tables of the reference pages from the code: `make reference`. A test holds the two together.

A page says where a table stands by a line `<!-- begin NAME -->`, ended by `<!-- end NAME -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from corral.cli.root import COMMANDS, root
from corral.cli.site import serve
from corral.domain.errors import CODES
from corral.domain.events import TYPES
from corral.domain.permissions import ROUTES, SCOPES, Who
from corral.server.config import Config
from corral.server.errors import status_of

FOLDER = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- begin ([a-z-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def codes() -> str:
    rows = [(f"`{code}`", str(status_of(code)), meaning) for code, meaning in CODES.items()]
    return table(("code", "status", "meaning"), rows)


def event_types() -> str:
    words = {"event": "event", "audit": "audit", "both": "event, audit"}
    rows = [(f"`{name}`", words[kind.value], meaning) for name, (kind, meaning) in TYPES.items()]
    return table(("type", "seen in", "meaning"), rows)


def scopes() -> str:
    return table(("scope", "what it opens"), [(f"`{scope}`", meaning) for scope, meaning in SCOPES.items()])


def routes() -> str:
    """Return who may use which route, in the order of the permission table."""
    rows = [
        (method, f"`{path}`", ", ".join(_who(rule.who)), f"`{rule.scope}`" if rule.scope else "")
        for (method, path), rule in ROUTES.items()
    ]
    return table(("method", "path", "who", "scope"), rows)


_WHO = {
    Who.PUBLIC: "anybody",
    Who.MACHINE: "a machine",
    Who.SELF: "oneself",
    Who.OPERATOR: "operator",
    Who.OWNER: "owner",
    Who.ADMIN: "admin",
    Who.MEMBER: "member",
    Who.WORKSPACE: "member of the workspace",
}


def _who(who: Who) -> Iterator[str]:
    return (text for bit, text in _WHO.items() if bit in who)


def settings() -> str:
    """Return every field of `Config`, with its option of `corral site serve` and its environment variable."""
    options = {parameter.name: parameter for parameter in serve.params if isinstance(parameter, click.Option)}
    said = _docstrings(Config)
    rows = [
        (f"`{field.name}`", *_option(options.get(field.name)), _default(field), said[field.name])
        for field in dataclasses.fields(Config)
    ]
    return table(("setting", "option", "environment", "default", "meaning"), rows)


def _option(option: click.Option | None) -> tuple[str, str]:
    return (f"`{option.opts[0]}`", f"`{option.envvar}`") if option else ("", "")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "see meaning"
    return "none" if field.default in (None, "", ()) else f"`{field.default}`"


def _docstrings(cls: type) -> Mapping[str, str]:
    """Return the text that stands under each field of a class."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            found[statement.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def commands() -> str:
    """Return every command with its arguments and the first line of its help."""
    lines = []
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        assert command is not None
        lines += list(_tree(command, f"corral {name}"))
    return table(("command", "what it does"), lines)


def _tree(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from _tree(inner, f"{path} {name}")
        return
    ctx = click.Context(command)
    arguments = [p.make_metavar(ctx) for p in command.params if isinstance(p, click.Argument)]
    yield f"`{' '.join([path, *arguments])}`", command.get_short_help_str(limit=200)


TABLES: Mapping[str, Callable[[], str]] = {
    "codes": codes,
    "event-types": event_types,
    "settings": settings,
    "scopes": scopes,
    "routes": routes,
    "commands": commands,
}
PAGES = ("events-and-errors.md", "api.md", "cli.md")


def rendered(page: str) -> str:
    """Return a page's text with its tables as the code has them."""
    return _BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)


def main() -> int:
    """Write the pages that differ, and name them."""
    for name in PAGES:
        path = FOLDER / name
        before = path.read_text("utf-8")
        after = rendered(before)
        if after != before:
            path.write_text(after, "utf-8")
            sys.stdout.write(f"wrote {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
