"""One short name for an inventory: while it stays the same, reports carry only this (spec 40, "Reporting")."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from corral.protocol import codec
from corral.protocol.messages import Inventory


def digest(inventory: Inventory) -> str:
    """Return 32 hex digits over the canonical JSON of `inventory`.

    Free disk space is left out: it changes all the time, and a disk that gets full is a condition.
    """
    steady = replace(inventory, disks=tuple(replace(disk, free_mib=0) for disk in inventory.disks))
    text = json.dumps(codec.to_plain(steady), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
