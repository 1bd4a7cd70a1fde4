"""Rows of GPUs' faults: latches keyed by (organisation, vendor, UUID, code), and what counters are measured against.

A GPU is fenced while it has a live latch (`cleared_at` is null), wherever in the organisation it is.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, exists

from corral.store.tables.faults import gpu_faults
from corral.store.tables.machines import gpus

_F = gpu_faults.c


def fenced() -> ColumnElement[bool]:
    """Whether a row of `gpus` in the same query has a live latch: placement never assigns it."""
    return exists().where(
        _F.org_id == gpus.c.org_id, _F.vendor == gpus.c.vendor, _F.uuid == gpus.c.uuid, _F.cleared_at.is_(None)
    )
