"""Access: the pools of a cluster that a workspace may use (spec 00, spec 05). Its quota there: `domain/quotas.py`.

A pool is the value of a machine's `pool` label. `*` means every machine of the organisation
in the cluster, those without a pool too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from corral.domain.errors import Refusal
from corral.domain.ids import shown

EVERY_POOL = "*"
POOLS_MAX = 100
_POOL = re.compile(r"[A-Za-z0-9._:/-]{1,63}")


def pools(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the pools, each once, sorted; 1 to 100 of them. Errors: `INVALID_REQUEST`, `INVALID_LABEL`."""
    if not 1 <= len(asked) <= POOLS_MAX:
        raise Refusal(
            "INVALID_REQUEST",
            f"pools: name 1 to {POOLS_MAX} pools, or '*' for every machine. To take access away, delete it.",
            field="pools",
        )
    for pool in asked:
        if pool != EVERY_POOL and _POOL.fullmatch(pool) is None:
            raise Refusal(
                "INVALID_LABEL",
                f"{shown(pool)} cannot be a pool: use 1 to 63 letters, digits and '-._:/', or '*'.",
                field="pools",
            )
    return tuple(sorted(set(asked)))


def may_use(granted: Iterable[str], pool: str) -> bool:
    """Return whether a workspace granted these pools may use a machine of `pool` ("": it has none)."""
    return any(one == EVERY_POOL or (pool != "" and one == pool) for one in granted)
