"""Labels of machines: which keys and values are welcome (spec 10, "Join tokens" and "Placement labels")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.domain.errors import Refusal
from corral.domain.ids import shown

PLACEMENT = ("pool", "site", "rack", "fabric")
MAX_LABELS = 64

RESERVED = frozenset({"corral", "arch", "os", "kernel", "hostname", "cluster", "org", "workspace"})
RESERVED_PREFIXES = ("corral.", "gpu", "cpu", "memory", "driver", "cuda", "machine", "node")
"""Keys that Corral sets or may set itself."""

_KEY = re.compile(r"[a-z0-9._-]{1,63}")
_VALUE = re.compile(r"[A-Za-z0-9._:/-]{1,63}")


@dataclass(frozen=True)
class Labels:
    """A machine's labels: where it is and whose it is, "" where not said, and the organisation's own keys."""

    pool: str = ""
    site: str = ""
    rack: str = ""
    fabric: str = ""
    own: Mapping[str, str] = field(default_factory=dict)


def checked(labels: Mapping[str, object]) -> dict[str, str]:
    """Return `labels` as they are given to a machine; an empty value means that the label is left out.

    Errors: `INVALID_LABEL`, `RESERVED_LABEL`.
    """
    if len(labels) > MAX_LABELS:
        raise Refusal("INVALID_LABEL", f"{len(labels)} labels are too many: give at most {MAX_LABELS}.", field="labels")
    return {key: value for key, value in ((key, _checked(key, value)) for key, value in labels.items()) if value}


def placement(given: Mapping[str, object]) -> dict[str, str]:
    """Return placement's labels as given, checked; "" = take the label away. Errors: `INVALID_LABEL`."""
    return {key: checked_value(key, given[key]) for key in PLACEMENT if key in given}


def split(labels: Mapping[str, str]) -> Labels:
    """Return checked labels as a machine keeps them: placement's own four, and the rest."""
    where = {key: labels.get(key, "") for key in PLACEMENT}
    return Labels(**where, own={key: value for key, value in labels.items() if key not in PLACEMENT})


def _checked(key: str, value: object) -> str:
    if _KEY.fullmatch(key) is None:
        raise Refusal(
            "INVALID_LABEL",
            f"{shown(key)} cannot be a label's key: use 1 to 63 lower case letters, digits and '-._'.",
            label=shown(key),
        )
    if key in RESERVED or key.startswith(RESERVED_PREFIXES):
        raise Refusal(
            "RESERVED_LABEL",
            f"The label '{key}' is Corral's own: it sets such labels itself. Use another key.",
            label=key,
        )
    return checked_value(key, value)


def checked_value(key: str, value: object) -> str:
    """Return a label's value; "" is one too. Errors: `INVALID_LABEL`."""
    if value == "":
        return ""
    if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
        given = shown(value) if isinstance(value, str) else f"a {type(value).__name__}"
        raise Refusal(
            "INVALID_LABEL",
            f"{given} cannot be the value of the label '{key}': use a text of at most 63 letters, digits and '-._:/'.",
            label=key,
        )
    return value
