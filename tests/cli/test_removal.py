"""`corral machine remove`: what it says before and after, and how it asks (spec 10, "Remove a machine")."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import pytest
from sqlalchemy import update

from corral.store.tables.machines import machines
from tests.cli.conftest import Cli, Running
from tests.conftest import Clock


def typing(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """Have somebody at a terminal who types `text`; returns what they are asked."""
    asked: list[str] = []

    def prompt(question: str, **_: Any) -> str:
        asked.append(question)
        return text

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)
    return asked


@pytest.mark.usefixtures("fleet")
def test_what_stops_is_said_and_the_name_is_asked_for(cli: Cli, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, more in (("again", ["--restart-policy", "on_machine_loss"]), ("once", [])):
        made = cli("member", "compute", "create", name, "--machine", "sim-00001", "--gpus", "1", "--wait", *more)
        assert made.code == 0, made.err
    assert "if its machine is lost  it is placed again elsewhere" in cli("member", "compute", "show", "again").out

    told = cli("admin", "machine", "remove", "sim-00001", "--dry-run").out
    assert "Runs on it: research/again, research/once" in told
    assert "install.sh" in told and "--uninstall" in told
    assert "NODE_IN_USE" in cli("admin", "machine", "remove", "sim-00001", "--yes").err

    asked = typing(monkeypatch, "sim-00002")
    wrong = cli("admin", "machine", "remove", "sim-00001", "--force")
    assert (wrong.code, asked) == (1, ["Type sim-00001 to remove the machine"])
    assert "This stops: research/again, research/once." in wrong.err
    assert "Placed again elsewhere, without what it had stored: research/again." in wrong.err
    assert "Ends as lost: research/once." in wrong.err

    clock.forward(1)  # what is placed again is placed later
    typing(monkeypatch, "sim-00001")
    gone = cli("admin", "machine", "remove", "sim-00001", "--force")
    assert gone.code == 0
    assert "forgotten, not deleted" in gone.out and "Lost: research/once." in gone.out
    assert "| sh -s -- --uninstall" in gone.out

    assert cli("member", "compute", "wait", "again").code == 0
    shown = json.loads(cli("member", "compute", "show", "again", "--json").out)
    assert (shown["machine"], shown["restart_policy"]) == ("sim-00002", "on_machine_loss")
    assert "workload.placed_again" in cli("member", "events", "-w", "research").out


def test_of_a_machine_that_is_down_it_says_that_work_may_run_on(running: Running, cli: Cli) -> None:
    running.world.add_machine("m", state="down")
    running.world.add_workload("dev", "m")
    with running.world.db.write() as tx:
        tx.run(update(machines).values(state="down"))
    told = cli("admin", "machine", "remove", "m", "--dry-run").out
    gone = cli("admin", "machine", "remove", "m", "--force", "--yes")
    for said in (told, gone.out, gone.err):
        assert "may run until it is heard of again" in said
    assert "uninstall" not in gone.out, "nobody can run it there now"
