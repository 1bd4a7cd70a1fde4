"""Organisations, workspaces, tokens and SSH keys on the command line, against a real site."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from corral.client import config
from tests.cli.conftest import Cli, Running


def test_lists_are_tables_for_people_and_the_apis_answer_for_programs(cli: Cli) -> None:
    assert cli("owner", "org", "list").out.splitlines()[0].split() == ["NAME", "SHOWN", "AS", "YOUR", "ROLE", "CONTACT"]
    for arguments in (["--json", "org", "list"], ["org", "--json", "list"], ["org", "list", "--json"]):
        rows = json.loads(cli("owner", *arguments).out)
        assert [row["slug"] for row in rows] == ["acme"] and rows[0]["role"] == "owner"


def test_what_is_not_there_and_what_is_not_allowed_are_told_apart(cli: Cli) -> None:
    absent, foreign = cli("owner", "org", "show", "nowhere"), cli("owner", "org", "show", "rival")
    assert absent.code == foreign.code == 3
    assert absent.err.splitlines()[0] == foreign.err.splitlines()[0]
    refused = cli("member", "workspace", "create", "mine")
    assert refused.code == 4 and "FORBIDDEN" in refused.err and "owner or admin" in refused.err
    assert cli("owner", "org", "set-role", "member", "king").code == 2


def test_the_only_one_needs_no_name_and_several_do(cli: Cli) -> None:
    assert cli("member", "workspace", "members").code == 0
    ran = cli("owner", "workspace", "members")
    assert ran.code == 1 and "private, research" in ran.err and "--workspace" in ran.err
    assert cli("owner", "workspace", "members", "-w", "research").code == 0


def test_a_default_is_used_until_an_option_says_otherwise(
    running: Running, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.save(config.Known().with_site(config.Site(running.site.url)))
    assert cli("owner", "workspace", "use", "research").code == 0
    assert "member" in cli("owner", "workspace", "members").out
    assert "member" not in cli("owner", "workspace", "members", "-w", "private").out
    monkeypatch.setenv("CORRAL_WORKSPACE", "private")
    assert "member" not in cli("owner", "workspace", "members").out


def test_an_invitation_is_accepted_and_the_person_put_to_work(
    running: Running, cli: Cli, nobody: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = json.loads(cli("owner", "--json", "org", "invite", "--role", "member").out)["link"]
    monkeypatch.delenv("CORRAL_TOKEN")
    monkeypatch.delenv("CORRAL_URL")
    ran = nobody("login", link, "--login", "new.one", "--name", "New One")
    assert ran.code == 0 and "acme (member)" in ran.out
    monkeypatch.setenv("CORRAL_URL", running.site.url)
    assert cli("owner", "workspace", "add", "new.one", "-w", "research", "--lead").code == 0
    rows = json.loads(cli("owner", "workspace", "members", "-w", "research", "--json").out)
    assert {row["login"]: row["part"] for row in rows}["new.one"] == "lead"
    assert cli("owner", "org", "remove-member", "new.one").code == 1  # nobody typed the login
    assert cli("owner", "org", "remove-member", "new.one", "--yes").code == 0
    assert "new.one" not in cli("owner", "org", "members").out


def test_an_invitation_without_a_login_names_the_field(cli: Cli, nobody: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    link = json.loads(cli("owner", "--json", "org", "invite").out)["link"]
    monkeypatch.delenv("CORRAL_TOKEN")
    monkeypatch.delenv("CORRAL_URL")
    ran = nobody("login", link)
    assert ran.code == 1 and "login" in ran.err


def test_somebody_logged_in_accepts_an_invitation_as_themselves(running: Running, cli: Cli, nobody: Cli) -> None:
    link = json.loads(cli("owner", "--json", "org", "invite").out)["link"]
    config.save(config.Known().with_site(config.Site(running.site.url, running.world.tokens["rival"])))
    ran = nobody("login", link, "--join")
    assert ran.code == 0 and "acme (member)" in ran.out and "rival (owner)" in ran.out
    assert config.load().sites[running.site.url].token == running.world.tokens["rival"]


def test_access_is_granted_shown_and_revoked(cli: Cli) -> None:
    granted = cli(
        "admin",
        "workspace",
        "access",
        "grant",
        "-w",
        "private",
        "--pool",
        "h100",
        "--gpus",
        "4",
        "--gpu-model",
        "H100=2",
    )
    assert granted.code == 0 and "h100" in granted.out and "0 of 4 GPUs, 0 of 2 H100" in granted.out
    row = json.loads(cli("admin", "workspace", "access", "show", "-w", "private", "--json").out)[0]
    assert (row["pools"], row["quota"]["gpus"], row["quota"]["gpu_models"]) == (["h100"], 4, {"H100": 2})
    assert cli("admin", "workspace", "access", "revoke", "-w", "private").code == 0
    assert cli("admin", "workspace", "access", "show", "-w", "private").out == ""


def test_a_token_is_shown_once_and_works_until_it_is_revoked(
    running: Running, cli: Cli, nobody: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(cli("member", "token", "create", "ci", "--scope", "compute:read", "--json").out)
    listed = cli("member", "token", "list")
    assert made["public_id"] in listed.out and made["token"] not in listed.out
    monkeypatch.setenv("CORRAL_TOKEN", made["token"])
    assert nobody("compute", "list", "-o", "acme", "-w", "research").code == 0
    refused = nobody("ssh-key", "list")
    assert refused.code == 4 and "scope" in refused.err
    assert cli("member", "token", "revoke", made["public_id"]).code == 0
    monkeypatch.setenv("CORRAL_TOKEN", made["token"])
    assert nobody("compute", "list", "-o", "acme", "-w", "research").code == 4


def test_ssh_keys_are_added_from_file_stdin_and_home(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = cli("member", "ssh-key", "add")
    assert ran.code == 1 and "ssh-keygen" in ran.err
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "other"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / ".ssh" / name)]
        subprocess.run(command, check=True)
    assert "id_ed25519" in cli("member", "ssh-key", "add").out
    # The private key was named: its public half is sent, never the key itself.
    assert "other" in cli("member", "ssh-key", "add", str(tmp_path / ".ssh" / "other")).out
    rows = json.loads(cli("member", "ssh-key", "list", "--json").out)
    assert sorted(row["name"] for row in rows) == ["id_ed25519", "other"]
    assert cli("member", "ssh-key", "remove", "other").code == 0
    (tmp_path / "bad").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    ran = cli("member", "ssh-key", "add", str(tmp_path / "bad"))
    assert ran.code == 1 and "INVALID_SSH_KEY" in ran.err
    assert cli("member", "ssh-key", "add", str(tmp_path / "absent")).code == 2


def test_the_operator_runs_the_site(cli: Cli) -> None:
    assert cli("operator", "org", "create", "third", "--name", "The Third").code == 0
    assert "corral login" in cli("operator", "org", "invite-owner", "-o", "third").out
    assert cli("operator", "site", "settings", "--hosted-machine-limit", "3", "--contact", "ops@example.org").code == 0
    assert "ops@example.org" in cli("operator", "site", "settings").out
    assert "site.changed" in cli("operator", "audit", "--site").out
    assert cli("owner", "site", "settings").code == 4
    assert cli("operator", "org", "remove", "third", "--yes").code == 0


def test_hostile_names_reach_no_terminal(running: Running, cli: Cli) -> None:
    from sqlalchemy import update

    from corral.store.tables.orgs import orgs

    with running.site.db.write() as tx:
        tx.run(update(orgs).where(orgs.c.slug == "acme").values(name="\x1b[31mred\u202e", contact="\x07"))
    for arguments in (["org", "list"], ["org", "show"], ["org", "show", "--json"]):
        out = cli("owner", *arguments).out
        assert "red" in out and not {"\x1b", "\u202e", "\x07"} & set(out)
