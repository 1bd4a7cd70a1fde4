"""JSON for the protocol's dataclasses in plain Python: the agent ships no compiled code.

The server decodes the same dataclasses with msgspec. Unknown fields are ignored (the wire
is additive); a wrong type is a `WireError`, never another exception.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class WireError(ValueError):
    """A frame that is not what the protocol says; the message names the field."""


def encode(kind: str, body: object) -> str:
    """Return the frame that carries `body`."""
    return json.dumps({"type": kind, "body": to_plain(body)}, separators=(",", ":"), ensure_ascii=False)


def decode(frame: str | bytes, known: Mapping[str, type[Any]]) -> object | None:
    """Return the frame's message, or None for a type this release does not know."""
    try:
        envelope = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise WireError("the frame is not JSON") from error
    if not isinstance(envelope, dict) or not isinstance(envelope.get("type"), str):
        raise WireError("the frame has no type")
    kind = known.get(envelope["type"])
    return None if kind is None else from_plain(kind, envelope.get("body", {}))


def to_plain(value: Any) -> Any:
    """Return `value` as JSON's own types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(kind: type[T], value: Any, where: str = "body") -> T:
    """Build the dataclass `kind` from JSON's own types. Errors: `WireError`."""
    return typing.cast("T", _build(kind, value, where))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _build(next(arg for arg in get_args(kind) if arg is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise WireError(f"{where} is not a list")
        return tuple(_build(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise WireError(f"{where} is not an object")
        return {key: _build(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(kind, value, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{where} is not an object")
    hints, given = _hints(kind), {}
    for item in fields(kind):
        if item.name in value:
            given[item.name] = _build(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise WireError(f"{where}.{item.name} is missing")
    return kind(**given)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise WireError(f"{where} has no value {value!r}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"{where} is not a {kind.__name__}")
    return value
