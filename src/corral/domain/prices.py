"""A cluster's price table (spec 10, "Prices, usage, budgets"): per GPU-hour by model, vCPU-hour, GiB-hour, GiB-month.

A table holds from the second in which it was set until the next one's; older ones are kept, so that usage costs
what it cost at its time. The hosted cluster's is the operator's to set, a dedicated one's its organisation's.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from corral.domain import money
from corral.domain.errors import Refusal
from corral.domain.ids import EPOCH, HIDDEN, shown

ANY_MODEL = "*"
MODELS_MAX = 200
CHANGES_MAX, CHANGES_WITHIN = 24, timedelta(days=1)
"""A table may be changed so often; each change is one more piece that every bill is made of."""
_RATES = ("vcpu_hour", "ram_gib_hour", "storage_gib_month")


@dataclass(frozen=True)
class PriceTable:
    """Rates in millionths of the currency's unit. `gpu_hour` by the model's name as machines report it, or `*`."""

    currency: str
    gpu_hour: Mapping[str, int] = field(default_factory=dict)
    vcpu_hour: int = 0
    ram_gib_hour: int = 0
    storage_gib_month: int = 0

    def gpu_rate(self, model: str) -> int | None:
        """Return what a GPU-hour of this model costs; None where the table does not say."""
        return self.gpu_hour.get(model, self.gpu_hour.get(ANY_MODEL))

    def shown(self) -> dict[str, Any]:
        """Return the table as the API and the journal show it: amounts as decimal strings."""
        gpus = {model: money.text(rate) for model, rate in sorted(self.gpu_hour.items())}
        rates = {name: money.text(getattr(self, name)) for name in _RATES}
        return {"currency": self.currency, "gpu_hour": gpus, **rates}


def asked(currency: str, gpu_hour: Mapping[str, str], rates: Mapping[str, str]) -> PriceTable:
    """Return the table that was asked for, from decimal strings. Errors: `INVALID_REQUEST`, naming the field."""
    if len(gpu_hour) > MODELS_MAX:
        raise Refusal("INVALID_REQUEST", f"gpu_hour: name at most {MODELS_MAX} models.", field="gpu_hour")
    gpus = {}
    for model, amount in gpu_hour.items():
        _check_model(model)
        gpus[model] = money.millionths(amount, f"gpu_hour.{model}", money.RATE_MAX)
    values = {name: money.millionths(rates[name], name, money.RATE_MAX) for name in _RATES}
    return PriceTable(money.currency(currency), gpus, **values)


def _check_model(model: str) -> None:
    if not 1 <= len(model) <= 100 or model != model.strip() or any(unicodedata.category(c) in HIDDEN for c in model):
        raise Refusal(
            "INVALID_REQUEST",
            f"gpu_hour: {shown(model)} is no GPU model. Write it as machines show it, or * for every other model.",
            field="gpu_hour",
        )


def check_changes(recent: Sequence[datetime], now: datetime) -> None:
    """Refuse one more change where there were as many as may be. `recent`: newest first. Errors: `RATE_LIMITED`."""
    if len(recent) < CHANGES_MAX:
        return
    free_at = recent[CHANGES_MAX - 1] + CHANGES_WITHIN
    if free_at > now:
        raise Refusal(
            "RATE_LIMITED",
            f"The prices were changed {CHANGES_MAX} times within a day. "
            f"Change them again from {free_at:%Y-%m-%d %H:%M} UTC on.",
            retry_after_s=max(1, -((now - free_at) // timedelta(seconds=1))),
        )


def check_setter(hosted: bool, *, operator: bool, admin: bool, contact: str) -> None:
    """Refuse whoever may not set a cluster's prices, saying whom to ask. Errors: `FORBIDDEN`."""
    if hosted and not operator:
        ask = f"Ask them: {contact}" if contact else "Ask them."
        raise Refusal("FORBIDDEN", f"The hosted cluster's prices are set by the site's operator. {ask}")
    if not hosted and not admin:
        raise Refusal(
            "FORBIDDEN",
            "A dedicated cluster's prices are set by its organisation. Ask an owner or admin of the organisation.",
        )


class Tariff:
    """One cluster's price tables over time. `since`: (from when, table), oldest first."""

    def __init__(self, since: Sequence[tuple[datetime, PriceTable]]) -> None:
        self.changes = [second(moment) for moment, _ in since]
        self.tables = [table for _, table in since]

    def at(self, moment: int) -> PriceTable | None:
        """Return the table that held in a second (since the epoch); None: there was none yet."""
        found = bisect_right(self.changes, moment)
        return self.tables[found - 1] if found else None


def second(moment: datetime) -> int:
    """Return the second, counted from the epoch, in which a moment lies."""
    return (moment - EPOCH) // timedelta(seconds=1)
