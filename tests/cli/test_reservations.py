"""`corral reservation` and `corral machine place`, against a running site."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, Running
from tests.conftest import Clock

BERLIN = ("--tz", "Europe/Berlin")
# The tests' clock stands at 2026-03-01 12:00 UTC, 13:00 in Berlin.
WINDOW = ("--from", "2026-03-02 08:00", "--to", "2026-03-02 18:00", *BERLIN)


@pytest.fixture
def machines(running: Running) -> None:
    running.world.add_machine("gpu-1", pool="h100")
    running.world.add_machine("gpu-2", pool="h100")
    running.world.add_workload("dev", "gpu-1", gpu_count=1)


def make(cli: Cli, *arguments: str) -> str:
    ran = cli("admin", "reservation", "create", *WINDOW, *arguments, "--json")
    assert ran.code == 0, ran.err
    id: str = json.loads(ran.out)["id"]
    return id


@pytest.mark.usefixtures("machines")
def test_local_times_are_sent_with_their_offset(cli: Cli) -> None:
    ran = cli("admin", "reservation", "create", *WINDOW, "--pool", "h100", "--for", "private", "--reason", "course")
    assert ran.code == 0, ran.err
    assert "Reserved for private from 2026-03-02 08:00 +01:00 to 2026-03-02 18:00 +01:00." in ran.out
    assert "Machines: 2 (gpu-1, gpu-2)" in ran.out and "Kept out: research" in ran.out
    assert "goes on" in ran.out and "research/dev" in ran.out and "no time limit" in ran.out
    (row,) = json.loads(cli("member", "reservation", "list", "--json").out)
    assert (row["start"], row["end"]) == ("2026-03-02T07:00:00Z", "2026-03-02T17:00:00Z")


@pytest.mark.usefixtures("machines")
def test_a_time_that_the_clocks_skip_or_show_twice_is_refused_before_anything_is_sent(cli: Cli) -> None:
    for start, word in (("2026-03-29 02:30", "2026-03-29T03:30+02:00"), ("2026-10-25 02:30", "2026-10-25T02:30+01:00")):
        ran = cli("admin", "reservation", "create", "--pool", "h100", "--from", start, "--to", "2026-12-01", *BERLIN)
        assert ran.code == 2 and word in ran.err
    assert cli("member", "reservation", "list").out == ""


@pytest.mark.usefixtures("machines")
def test_without_a_beginning_it_begins_now_and_without_for_it_is_for_nobody(cli: Cli) -> None:
    ran = cli("admin", "reservation", "create", "--machine", "gpu-2", "--to", "2040-01-01", *BERLIN)
    assert ran.code == 1 and "INVALID_RESERVATION" in ran.err  # now is later than the tests' clock: years too long
    ran = cli(
        "admin", "reservation", "create", "-m", "gpu-2", "--from", "2026-03-01T12:00Z", "--to", "2026-03-03", *BERLIN
    )
    assert ran.code == 0 and "Reserved for nobody from 2026-03-01 13:00 +01:00" in ran.out
    assert "reserved for nobody until 2026-03-02 23:00 UTC" in cli("admin", "machine", "list").out
    assert "reserved for nobody until" in cli("member", "machine", "list", "-w", "research").out
    shown = cli("admin", "machine", "show", "gpu-2").out
    assert "reserved   for nobody from 2026-03-01T12:00:00Z to 2026-03-02T23:00:00Z" in shown


@pytest.mark.usefixtures("machines")
def test_a_dry_run_names_conflicts_and_makes_nothing(cli: Cli) -> None:
    id = make(cli, "--machine", "gpu-1")
    ran = cli("admin", "reservation", "create", *WINDOW, "--pool", "h100", "--dry-run")
    assert ran.code == 0
    assert f"Conflict: {id} has gpu-1 for nobody from 2026-03-02 08:00 +01:00" in ran.out
    refused = cli("admin", "reservation", "create", *WINDOW, "--pool", "h100")
    assert refused.code == 1 and "RESERVATION_CONFLICT" in refused.err and id in refused.err
    assert len(json.loads(cli("member", "reservation", "list", "--json").out)) == 1


@pytest.mark.usefixtures("machines")
def test_reservations_are_listed_shown_and_removed(cli: Cli, clock: Clock) -> None:
    id = make(cli, "--machine", "gpu-1", "--for", "private", "--reason", "new\u00a0fans")
    out = cli("member", "reservation", "list", *BERLIN).out
    assert id in out and "upcoming" in out and "1: gpu-1" in out and "2026-03-02 08:00 +01:00" in out
    assert cli("member", "reservation", "list", "--machine", "gpu-2").out == ""
    out = cli("member", "reservation", "show", id, *BERLIN).out
    assert "for               private" in out and "research/dev" in out
    assert cli("member", "reservation", "remove", id).code == 4
    assert "research" in cli("admin", "reservation", "remove", id, "--dry-run").out
    clock.forward(3600)
    assert "Let in again: research" in cli("admin", "reservation", "remove", id).out
    assert cli("admin", "reservation", "show", id).code == 3


@pytest.mark.usefixtures("machines")
def test_a_reservation_of_nothing_needs_a_machine_or_a_pool(cli: Cli) -> None:
    ran = cli("admin", "reservation", "create", *WINDOW)
    assert ran.code == 1 and "INVALID_RESERVATION" in ran.err and "nodes" in ran.err
    assert cli("admin", "reservation", "create", "--pool", "h100").code == 2
    assert cli("admin", "reservation", "list", "--tz", "Nowhere").code == 2


@pytest.mark.usefixtures("machines")
def test_a_machine_is_placed_with_who_can_use_it_before_and_after(cli: Cli) -> None:
    ran = cli("admin", "workspace", "access", "grant", "-w", "private", "--cluster", "default", "--pool", "a100")
    assert ran.code == 0, ran.err
    ran = cli("admin", "machine", "place", "gpu-1", "--pool", "a100", "--rack", "r1", "--dry-run")
    assert ran.code == 0
    assert "pool: h100 -> a100" in ran.out and "rack: - -> r1" in ran.out
    assert "Can use it now: research" in ran.out and "Can use it after: private, research" in ran.out
    assert cli("admin", "machine", "place", "gpu-1", "--pool", "a100", "--rack", "r1").code == 0
    ran = cli("admin", "machine", "place", "gpu-1", "--pool", "")
    assert "pool: a100 -> -" in ran.out and "Can use it now: research" in ran.out
    machine = json.loads(cli("admin", "machine", "show", "gpu-1", "--json").out)["machine"]
    assert (machine["pool"], machine["rack"]) == ("", "r1")
    assert cli("admin", "machine", "place", "gpu-1").code == 2
    assert "INVALID_LABEL" in cli("admin", "machine", "place", "gpu-1", "--rack", "a b").err


def test_the_sdk_takes_times_with_a_zone_only(running: Running) -> None:
    from datetime import datetime, timedelta, timezone

    from corral.client import Corral, CorralError

    running.world.add_machine("gpu-1")
    start = datetime(2026, 3, 2, tzinfo=timezone.utc)
    with Corral(running.site.url, running.world.tokens["admin"]) as corral:
        reservations = corral.org("acme").cluster("default").reservations
        made = reservations.create(start, start + timedelta(hours=1), nodes=["gpu-1"])
        assert (made.start, made.nodes, [one.id for one in reservations.list()]) == (start, ["gpu-1"], [made.id])
        with pytest.raises(CorralError, match="time zone"):
            reservations.create(start.replace(tzinfo=None), start, nodes=["gpu-1"])
        gone = reservations.remove(made.id)
        assert gone is not None and gone.reservation.id == made.id
