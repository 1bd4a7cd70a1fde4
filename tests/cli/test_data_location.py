"""`corral machine data-location`, and compute clusters with drives, with simulated machines."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli
from tests.live_server import eventually


@pytest.mark.usefixtures("fleet")
def test_a_data_location_is_chosen_used_and_forgotten(cli: Cli) -> None:
    at = ("admin", "machine", "data-location")
    shown = cli(*at, "show", "sim-00001").out
    assert "Drive copies: none" in shown and "recommended" in shown and "holds the operating system" in shown
    waits = cli("member", "compute", "create", "train", "--drive", "weights", "--queue")
    assert waits.code == 0 and "no data location" in waits.out
    assert "no data location" in cli("member", "compute", "explain", "--drive", "weights").out

    assert "INVALID_PATH" in cli(*at, "choose", "sim-00001", "/etc/corral").err
    would = cli(*at, "choose", "sim-00001", "/mnt/nvme1/corral", "--dry-run")
    assert would.code == 0 and would.out.startswith("Would do: /mnt/nvme1/corral on /mnt/nvme1")
    assert cli(*at, "choose", "sim-00001", "/mnt/nvme1/corral", "--max-size", "100").code == 0
    assert cli("member", "compute", "wait", "train").code == 0
    assert "/drives/weights" in cli("member", "compute", "show", "train").out
    assert "at most 100 GiB" in cli("admin", "machine", "show", "sim-00001").out

    refused = cli(*at, "forget", "sim-00001")
    assert refused.code == 1 and "DATA_LOCATION_IN_USE" in refused.err
    assert cli("member", "compute", "terminate", "train", "--yes", "--wait").code == 0
    eventually(lambda: cli(*at, "forget", "sim-00001").code == 0)
    assert json.loads(cli(*at, "show", "sim-00001", "--json").out)["data_location"] is None
