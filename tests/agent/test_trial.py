"""What the watchdog makes of what it hears of a trial (spec 40, "Update"). With real releases: test_update."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from corral.agent import trial
from corral.agent.door import Knocks
from corral.agent.trial import NO_SESSION, Line, Stop


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial has no end by time unless a test says so."""
    for name in ("COMES_WITHIN_S", "OPEN_FOR_S", "SHUT_FOR_S"):
        monkeypatch.setattr(trial, name, 3600.0)


@pytest.fixture
def successor() -> Iterator[tuple[socket.socket, Line]]:
    """The successor's end of the line, and the watchdog's."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    with ours, theirs:
        yield theirs, Line(ours, process)
    process.wait()


def judged(line: Line, ask: Callable[[], None] = lambda: None) -> str:
    with Stop() as stop, Knocks(ask, 0.01) as knocks:
        return trial._judge(line, knocks, stop)


def shut() -> None:
    raise OSError("away")


@pytest.mark.parametrize(
    "said", [[b"works\n"], [b"runs\n", b"works\n"], [b"runs\nwor", b"ks\n"], [b"later: 1\nworks\n"]]
)
def test_it_works_once_it_says_so_whatever_it_said_before(
    successor: tuple[socket.socket, Line], said: list[bytes]
) -> None:
    theirs, line = successor
    for part in said:
        theirs.sendall(part)
    assert judged(line) == ""


def test_a_line_that_comes_in_parts_is_one(successor: tuple[socket.socket, Line]) -> None:
    theirs, line = successor
    for part, read in [(b"wor", []), (b"ks", []), (b"\nru", [b"works"]), (b"ns\n", [b"runs"])]:
        theirs.sendall(part)
        assert line.read() == read
    theirs.close()
    assert line.read() is None


@pytest.mark.parametrize("said", [b"", b"runs\n", b"later: 1\n", b"works"])
def test_it_has_failed_when_its_line_ends_without_that(successor: tuple[socket.socket, Line], said: bytes) -> None:
    theirs, line = successor
    theirs.sendall(said)
    theirs.close()
    assert "ended on its trial (exit code 7)" in judged(line)


def test_it_has_failed_when_the_site_takes_sessions_and_not_its_own(
    successor: tuple[socket.socket, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, line = successor
    monkeypatch.setattr(trial, "OPEN_FOR_S", 0.05)
    theirs.sendall(b"runs\n")
    assert judged(line) == NO_SESSION


def test_it_stays_when_the_site_takes_no_session_of_the_machine(
    successor: tuple[socket.socket, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, line = successor
    monkeypatch.setattr(trial, "SHUT_FOR_S", 0.05)
    theirs.sendall(b"runs\n")
    assert judged(line, shut) == ""


def test_a_site_that_comes_and_goes_decides_nothing(
    successor: tuple[socket.socket, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, line = successor
    for name in ("OPEN_FOR_S", "SHUT_FOR_S"):
        monkeypatch.setattr(trial, name, 1e-9)  # two answers alike would
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 20:
            theirs.sendall(b"works\n")
        if asked % 2:
            raise OSError("away")

    theirs.sendall(b"runs\n")
    assert judged(line, ask) == ""
    assert asked >= 20


def test_it_has_failed_when_it_says_nothing_in_time(
    successor: tuple[socket.socket, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "COMES_WITHIN_S", 0.05)
    assert "did not come to work" in judged(successor[1])
