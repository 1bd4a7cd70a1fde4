"""`corral events --export` and `corral audit --export`: a file on stdout."""

from __future__ import annotations

import csv
import io
import json

from tests.cli.conftest import Cli, Running


def test_events_are_written_as_json_lines(running: Running, cli: Cli) -> None:
    running.world.add_machine("m")
    assert cli("admin", "machine", "cordon", "m", "--reason", "fans").code == 0
    ran = cli("admin", "events", "--type", "cluster.node.*", "--export", "ndjson")
    assert [json.loads(line)["type"] for line in ran.out.splitlines()] == ["cluster.node.cordoned"]


def test_the_audit_is_written_as_csv(running: Running, cli: Cli) -> None:
    running.world.add_machine("m")
    cli("admin", "machine", "cordon", "m")
    (row,) = csv.DictReader(io.StringIO(cli("admin", "audit", "--export", "csv").out))
    assert (row["type"], row["actor"]) == ("cluster.node.cordoned", "admin")


def test_a_file_is_not_followed_and_not_given_to_members(cli: Cli) -> None:
    assert cli("admin", "events", "--follow", "--export", "csv").code == 2
    assert cli("member", "audit", "--export", "csv").code == 4
