"""What was used and what it costs: in pages, or as one CSV file (spec 10, "Prices, usage, budgets")."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice
from typing import IO, Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, Field

from corral.domain import money
from corral.domain.ids import EPOCH
from corral.domain.usage import Bill, By, day_name
from corral.server import csv_cells
from corral.server.door import AtDoor, Page, Paging, keys_token
from corral.server.places import Places
from corral.usecases import usage as use

router = APIRouter()

IN_MEMORY = 1 << 20
"""Bytes of a CSV file that are kept in memory; a longer one lies in a temporary file until it is sent."""
_CHUNK = 1 << 16


class UsageFormat(str, Enum):
    JSON = "json"
    CSV = "csv"


class Money(BaseModel):
    """An amount as a decimal string, with as many decimals as it needs."""

    currency: str
    amount: str


class UsageBill(BaseModel):
    """Amounts times seconds; the cost in each currency. What no price stood against is in `unpriced_…`."""

    gpu_seconds: int
    vcpu_seconds: int
    ram_mib_seconds: int
    storage_mib_seconds: int
    cost: list[Money]
    unpriced_gpu_seconds: int
    unpriced_vcpu_seconds: int


class UsageGroup(UsageBill):
    """One group; null for what it is not grouped by. `model` "": without GPUs."""

    workspace: str | None = None
    workspace_id: str | None = None
    user: str | None = None
    user_id: str | None = None
    workload: str | None = None
    workload_id: str | None = None
    model: str | None = None
    cluster: str | None = None
    cluster_id: str | None = None
    day: str | None = None


class UsageList(BaseModel):
    """`to` is now at the latest. `total` (of all groups) is on the first page only."""

    since: datetime = Field(serialization_alias="from")
    to: datetime
    by: list[By]
    total: UsageBill | None
    items: list[UsageGroup]
    next_page_token: str | None


# Async though it waits for nothing: a plain one is called in a thread.
async def read_query(
    by: Annotated[list[By] | None, Query(max_length=len(By))] = None,
    since: Annotated[AwareDatetime | None, Query(alias="from")] = None,
    to: AwareDatetime | None = None,
    workspace: str | None = None,
    user: str | None = None,
    cluster: str | None = None,
) -> use.Query:
    """`by`: repeatable. Times are RFC 3339 with an offset; `from` counts, `to` does not."""
    return use.Query(tuple(by or (By.WORKSPACE,)), since, to, workspace, user, cluster)


@router.get(
    "/api/v1/orgs/{org}/usage", response_model=UsageList, responses={200: {"content": {csv_cells.MEDIA_TYPE: {}}}}
)
def show_usage(
    org: str,
    query: Annotated[use.Query, Depends(read_query)],
    door: AtDoor,
    page: Page,
    request: Request,
    format: UsageFormat = UsageFormat.JSON,
) -> UsageList | StreamingResponse:
    """What was used and what it costs, by workspace or as `by` says; default: this month (UTC) until now.

    `format=csv`: all groups as one file. Members get the usage of workloads they made, in their workspaces.
    """
    places: Places = request.app.state.metering
    with door.read() as ctx, ExitStack() as until_sent:
        until_sent.enter_context(places.held(ctx.user.id))
        report = use.report(ctx, query)
        if format is UsageFormat.JSON:
            return _page(report, page)
        file = until_sent.enter_context(_written(report))
        return _CsvFile(file, until_sent.pop_all())


def _page(report: use.Report, page: Paging) -> UsageList:
    names = use.key_names(report.by)
    after = page.keys([int if name == "day" else str for name in names])
    groups = list(islice(report.groups(after), page.size + 1))
    shown = groups[: page.size]
    return UsageList(
        since=_moment(report.period.start),
        to=_moment(report.period.end),
        by=list(report.by),
        total=UsageBill(**_bill(report.total())) if after is None else None,
        items=[UsageGroup(**_called(names, group.key), **_bill(group.bill)) for group in shown],
        next_page_token=keys_token(shown[-1].key) if len(groups) > page.size else None,
    )


def _called(names: Sequence[str], key: use.Key) -> dict[str, Any]:
    return {name: day_name(int(value)) if name == "day" else value for name, value in zip(names, key, strict=True)}


def _bill(bill: Bill) -> dict[str, Any]:
    cost = [Money(currency=currency, amount=money.text(amount)) for currency, amount in bill.rounded().items()]
    return {**_seconds(bill), "cost": cost, **_unpriced(bill)}


def _seconds(bill: Bill) -> dict[str, int]:
    return {f"{name}_seconds": amount for name, amount in vars(bill.used).items()}


def _unpriced(bill: Bill) -> dict[str, int]:
    return {"unpriced_gpu_seconds": bill.unpriced_gpu, "unpriced_vcpu_seconds": bill.unpriced_vcpu}


def _moment(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class _CsvFile(StreamingResponse):
    """A file; when it was sent, or cannot be, it is closed and its person's place given back."""

    def __init__(self, file: IO[bytes], until_sent: ExitStack) -> None:
        headers = {"Content-Disposition": 'attachment; filename="usage.csv"', "Cache-Control": "no-store"}
        super().__init__(iter(lambda: file.read(_CHUNK), b""), media_type=csv_cells.MEDIA_TYPE, headers=headers)
        self._until_sent = until_sent

    async def __call__(self, *asgi: Any) -> None:
        try:
            await super().__call__(*asgi)
        finally:
            self._until_sent.close()


def _written(report: use.Report) -> IO[bytes]:
    """Write the file as the database gives its rows: whoever reads it slowly keeps no transaction open."""
    file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - the answer closes it
    try:
        for line in _lines(report):
            file.write(line)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast("IO[bytes]", file)


def _lines(report: use.Report) -> Iterator[bytes]:
    """Yield the head and a line for each group; the cost has a column for each currency."""
    names, currencies = use.key_names(report.by), report.currencies
    costs = [f"cost_{currency}" for currency in currencies]
    empty = Bill()
    yield csv_cells.line([*names, *_seconds(empty), *costs, *_unpriced(empty)])
    for group in report.groups():
        cost = group.bill.rounded()
        amounts = [money.text(cost.get(currency, 0)) for currency in currencies]
        key = _called(names, group.key).values()
        yield csv_cells.line([*key, *_seconds(group.bill).values(), *amounts, *_unpriced(group.bill).values()])
