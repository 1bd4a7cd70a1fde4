"""From the API's JSON to the SDK's dataclasses: unknown fields are ignored, so an old SDK reads a newer site."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from corral.client.errors import BAD_ANSWER, CorralError

V = TypeVar("V", bound="View")


@dataclass(frozen=True, kw_only=True)
class View:
    """What the site answered. `raw` is the JSON as it came, with fields that this SDK does not know yet."""

    raw: dict[str, Any] = field(repr=False, compare=False, default_factory=dict)


def decode(kind: type[V], data: Any) -> V:
    """Return `data` as a `kind`. Errors: `CorralError` `BAD_ANSWER` when a field is missing or of another type."""
    if not isinstance(data, dict):
        raise CorralError(BAD_ANSWER, f"The site answered something that is no {kind.__name__}.")
    return kind(**_values(kind, data), raw=data)


def _values(kind: type[View], data: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for name, read in _readers(kind).items():  # type: ignore[arg-type]  # mypy asks View's __hash__, not its type's
        if name in data:
            try:
                values[name] = read(data[name])
            except (TypeError, ValueError) as error:
                raise CorralError(
                    BAD_ANSWER, f"The site answered a {kind.__name__} whose '{name}' cannot be read: {error}."
                ) from error
    missing = [f.name for f in fields(kind) if f.init and f.name not in values and f.name != "raw" and _required(f)]
    if missing:
        raise CorralError(
            BAD_ANSWER, f"The site answered a {kind.__name__} without '{missing[0]}'. Is its release much older?"
        )
    return values


def _required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


@cache
def _readers(kind: type[View]) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind) if f.name != "raw"}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return how to read one value of type `hint`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = _reader(next(arg for arg in args if arg is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin in (list, tuple):
        inner = _reader(args[0])
        return lambda value: [inner(item) for item in value] if isinstance(value, list) else _wrong(value, "a list")
    if hint is datetime:
        return _time
    if isinstance(hint, type) and issubclass(hint, View):
        return lambda value: decode(hint, value)
    if hint in (str, int, bool):
        return lambda value: value if type(value) is hint else _wrong(value, hint.__name__)
    if hint is float:
        return lambda value: float(value) if type(value) in (int, float) else _wrong(value, "a number")
    return lambda value: value


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError("not a time")
    return datetime.fromisoformat(value.replace("Z", "+00:00"))


def _wrong(value: Any, wanted: str) -> Any:
    raise TypeError(f"{type(value).__name__} where {wanted} was expected")
