"""GPUs' faults on the command line, of simulated machines that speak the real protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Cli, Running, simulated
from tests.live_server import eventually


@pytest.fixture
def storm(running: Running, cli: Cli) -> Iterator[list[dict[str, Any]]]:
    """Three machines, of whose first GPUs one is off the bus, one has a memory error, one has no links."""
    with simulated(running, "--machines", "3", "--gpus", "2", "--faults", "100"):
        yield eventually(lambda: found if len(found := faults(cli)) == 3 else [])


def faults(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("admin", "machine", "faults", "--json", *arguments).out)
    return found


def test_faults_are_shown_and_cleared_and_one_that_is_still_there_is_not(cli: Cli, storm: list[dict[str, Any]]) -> None:
    by_code = {fault["code"]: fault for fault in storm}
    assert set(by_code) == {"xid_79", "xid_94", "xid_74"}
    bus, links = by_code["xid_79"], by_code["xid_74"]
    shown = cli("admin", "machine", "show", bus["machine"]).out
    assert "fenced, xid_79: fallen off the bus" in " ".join(shown.split())
    assert bus["machine"] in cli("admin", "machine", "faults").out
    assert [fault["gpu"] for fault in faults(cli, bus["machine"])] == [bus["gpu"]]

    would = cli("admin", "machine", "clear-fault", bus["machine"], bus["gpu"], "--dry-run")
    assert would.code == 0 and would.out.startswith("Would clear: xid_79")
    assert len(faults(cli)) == 3
    cleared = cli("admin", "machine", "clear-fault", bus["machine"], bus["gpu"])
    assert cleared.code == 0 and cleared.out == "Cleared: xid_79 (fallen off the bus)\n"
    assert cli("admin", "machine", "clear-fault", bus["machine"], bus["gpu"]).out == f"{bus['gpu']} has no fault.\n"
    still = cli("admin", "machine", "clear-fault", links["machine"], links["gpu"])
    assert "Still there, so it stays fenced: nvlink_down (all its NVLinks are down)" in still.out
    assert {fault["machine"] for fault in faults(cli)} == {fault["machine"] for fault in storm} - {bus["machine"]}
    assert "by admin" in " ".join(cli("admin", "machine", "faults", "--state", "cleared").out.split())


def test_a_fault_that_was_said_again_meanwhile_is_not_said_to_be_none(
    cli: Cli, storm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.usecases.faults._came_after", lambda _latch, _answered: True)
    bus = next(fault for fault in storm if fault["code"] == "xid_79")
    said = cli("admin", "machine", "clear-fault", bus["machine"], bus["gpu"])
    assert "Still there, so it stays fenced: xid_79" in said.out
    assert "Nothing was cleared" in said.out and "no fault" not in said.out


def test_what_cannot_be_cleared_says_why(cli: Cli, storm: list[dict[str, Any]]) -> None:
    refused = cli("admin", "machine", "clear-fault", storm[0]["machine"], "GPU-none")
    assert refused.code != 0 and "NOT_FOUND" in refused.err
    refused = cli("member", "machine", "clear-fault", storm[0]["machine"], storm[0]["gpu"])
    assert refused.code != 0 and "FORBIDDEN" in refused.err
