"""Local times become moments with the offset of their day; what the clocks skip or show twice is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli import local_time
from corral.cli.local_time import moment, zone

EPOCH = datetime(2020, 1, 1, tzinfo=timezone.utc)
BERLIN = zone("Europe/Berlin")


def utc(text: str, where: local_time.Zone = BERLIN) -> str:
    return f"{moment(text, where, '--from').astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}"


def refused(text: str, where: local_time.Zone = BERLIN) -> str:
    with pytest.raises(click.BadParameter) as error:
        moment(text, where, "--from")
    assert error.value.param_hint == "--from"
    return error.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01 12:00", "2026-03-01T11:00:00"),
        ("2026-07-01T12:00:30", "2026-07-01T10:00:30"),
        ("2026-03-02", "2026-03-01T23:00:00"),
        ("2028-02-29 00:30", "2028-02-28T23:30:00"),
        ("2026-03-29 01:59", "2026-03-29T00:59:00"),
        ("2026-03-29 03:00", "2026-03-29T01:00:00"),
        ("2026-10-25 01:59", "2026-10-24T23:59:00"),
        ("2026-10-25 03:00", "2026-10-25T02:00:00"),
        ("2026-10-25T02:30+02:00", "2026-10-25T00:30:00"),
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30:00"),
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00"),
        ("2026-03-01 12:00z", "2026-03-01T12:00:00"),
    ],
)
def test_a_local_time_has_the_offset_of_its_day(text: str, expected: str) -> None:
    assert utc(text) == expected


def test_a_time_that_the_clocks_skip_is_refused_with_what_to_write() -> None:
    message = refused("2026-03-29 02:30")
    assert "does not exist in Europe/Berlin" in message
    assert "2026-03-29T01:30+01:00 or 2026-03-29T03:30+02:00" in message


def test_a_time_that_comes_twice_is_refused_with_what_to_write() -> None:
    message = refused("2026-10-25 02:30")
    assert "comes twice in Europe/Berlin" in message
    assert "2026-10-25T02:30+02:00 for the first, 2026-10-25T02:30+01:00 for the other" in message


def test_a_midnight_that_does_not_exist_is_refused_too() -> None:
    assert "does not exist" in refused("2024-09-08", zone("America/Santiago"))


@pytest.mark.parametrize("text", ["", "noon", "2026-02-29", "2026-03-01 25:00", "12:00", "2026-03-01 12:00+99:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert "is no time" in refused(text)


@pytest.mark.parametrize("name", ["Nowhere/Land", "../../etc/passwd", "", "Europe/Berlin\x00"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time zone"):
        zone(name)


def test_moments_are_shown_on_the_zones_clocks() -> None:
    assert BERLIN.shown(datetime(2026, 7, 1, 10, tzinfo=timezone.utc)) == "2026-07-01 12:00 +02:00"
    assert BERLIN.shown(datetime(2026, 1, 1, 10, 0, 5, tzinfo=timezone.utc)) == "2026-01-01 11:00:05 +01:00"


@given(
    st.integers(0, 15 * 365 * 24 * 4).map(lambda quarters: EPOCH + timedelta(minutes=15 * quarters)),
    st.sampled_from(
        ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]
    ),
)
def test_every_time_that_a_zones_clocks_show_once_means_that_moment_and_others_are_refused(
    wall: datetime, name: str
) -> None:
    naive, rule = wall.replace(tzinfo=None), ZoneInfo(name)
    near = (wall - timedelta(minutes=offset) for offset in range(-14 * 60, 15 * 60, 15))
    meant = {one for one in near if one.astimezone(rule).replace(tzinfo=None) == naive}
    if len(meant) == 1:
        assert {moment(f"{naive:%Y-%m-%d %H:%M}", zone(name), "--to")} == meant
    else:
        refused(f"{naive:%Y-%m-%d %H:%M}", zone(name))


# --- the machine's own zone


def test_the_machines_zone_is_tz(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("Asia/Kathmandu", ":Asia/Kathmandu"):
        monkeypatch.setenv("TZ", value)
        assert zone(None).name == "Asia/Kathmandu"
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    with pytest.raises(click.BadParameter, match="Give one with --tz"):
        zone(None)


def test_without_tz_it_is_what_localtime_leads_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(local_time, "LOCALTIME", tmp_path / "localtime")
    assert utc("2026-03-01 12:00", zone(None)) == "2026-03-01T12:00:00"
    rules = tmp_path / "zoneinfo" / "Asia"
    rules.mkdir(parents=True)
    (rules / "Kathmandu").write_bytes(b"")
    (tmp_path / "localtime").symlink_to(rules / "Kathmandu")
    assert zone(None).name == "Asia/Kathmandu"


def test_a_localtime_that_is_a_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    path = tmp_path / "localtime"
    # One rule for all times: UTC+5:45, as version 1 of the format has it.
    head = b"TZif" + bytes(16) + b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 6))
    path.write_bytes(head + (5 * 3600 + 45 * 60).to_bytes(4, "big") + b"\0\0" + b"+0545\0")
    monkeypatch.setattr(local_time, "LOCALTIME", path)
    assert utc("2026-03-01 12:00", zone(None)) == "2026-03-01T06:15:00"
