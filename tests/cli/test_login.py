"""Logging in by link and password, with the site's CA pinned; what is kept, and that nobody else may read it."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.client import config
from corral.client.errors import CorralError
from corral.client.login import parse_link
from tests.cli.conftest import Cli, Running


@contextmanager
def serving(state: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run `corral site serve` on a free loopback port; yields the process and what it said at start."""
    command = [sys.executable, "-m", "corral", "site", "serve", "--state-dir", str(state), "--port", "0", *arguments]
    with (state.parent / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        if "answers" not in said[0]:
            raise AssertionError((state.parent / "log").read_text())
        yield process, said
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _link(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    process.stdout.readline()
    found = re.search(r"'(https?://[^']+)'", process.stdout.readline())
    assert found is not None
    return found[1]


def test_the_operators_link_pins_the_sites_ca(tmp_path: Path, nobody: Cli) -> None:
    with serving(tmp_path / "site", "--tls", "own") as (process, said):
        link = _link(process)
        assert said[0].split()[-1] in link and "&ca=" in link
        ran = nobody("login", link, "--login", "root")
        assert (ran.code, ran.err) == (0, "")
        known = config.load()
        site = known.sites[known.current or ""]
        assert site.token is not None and site.ca is not None and ssl.PEM_cert_to_DER_cert(site.ca)
        assert site.token not in ran.out
        ran = nobody("login")
        assert ran.code == 0 and "root" in ran.out
        # Whoever holds another CA's certificate is not believed.
        ran = nobody("login", link.replace("&ca=" + link.partition("&ca=")[2], "&ca=" + "0" * 64), "--login", "x")
        assert ran.code == 5 and "UNTRUSTED" in ran.err
    assert process.returncode == 0


def test_without_the_pin_a_private_certificate_is_refused(tmp_path: Path, nobody: Cli) -> None:
    with serving(tmp_path / "site", "--tls", "own") as (process, _):
        ran = nobody("login", _link(process).partition("&ca=")[0], "--login", "root")
        assert ran.code == 5 and "UNTRUSTED" in ran.err and "&ca=" in ran.err
        assert not config.path().exists()


def test_a_site_with_an_operator_prints_no_link_and_keeps_its_ca(tmp_path: Path, nobody: Cli) -> None:
    with serving(tmp_path / "site", "--tls", "own") as (process, _):
        assert nobody("login", _link(process), "--login", "root").code == 0
    pem = (tmp_path / "site" / "tls" / "ca.pem").read_bytes()
    with serving(tmp_path / "site", "--tls", "own") as (process, _):
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert rest == ""
    assert (tmp_path / "site" / "tls" / "ca.pem").read_bytes() == pem


def test_a_second_process_does_not_get_the_site_and_leaves_the_link_alone(tmp_path: Path, nobody: Cli) -> None:
    with serving(tmp_path / "site") as (process, _):
        link = _link(process)
        command = [
            sys.executable,
            "-m",
            "corral",
            "site",
            "serve",
            "--state-dir",
            str(tmp_path / "site"),
            "--port",
            "0",
        ]
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1 and f"process {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert nobody("login", link, "--login", "root").code == 0


def test_a_link_works_once(tmp_path: Path, nobody: Cli) -> None:
    with serving(tmp_path / "site") as (process, _):
        link = _link(process)
        assert nobody("login", link, "--login", "root").code == 0
        ran = nobody("login", link, "--login", "other")
        assert ran.code == 1 and "LINK_USED" in ran.err and "request:" in ran.err


def test_what_is_kept_is_for_its_owner_only(nobody: Cli) -> None:
    config.save(config.Known().with_site(config.Site("https://site.example", "cora_x")))
    assert stat.S_IMODE(config.path().stat().st_mode) == 0o600
    assert stat.S_IMODE(config.path().parent.stat().st_mode) == 0o700
    assert [file.name for file in config.path().parent.iterdir()] == ["config.json"]


def test_a_broken_configuration_says_what_to_do(nobody: Cli) -> None:
    config.path().parent.mkdir()
    config.path().write_text("{")
    ran = nobody("org", "list")
    assert ran.code == 1 and "BAD_CONFIG" in ran.err and "corral login" in ran.err


def test_not_logged_in_is_told_apart(nobody: Cli) -> None:
    ran = nobody("org", "list")
    assert ran.code == 4 and "corral login" in ran.err


def test_a_site_that_does_not_answer_is_told_apart(nobody: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.client.transport.LONGEST_WAIT_S", 0.0)
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:1")
    ran = nobody("org", "list")
    assert ran.code == 5 and "UNREACHABLE" in ran.err
    ran = nobody("--json", "org", "list")
    assert json.loads(ran.err)["code"] == "UNREACHABLE" and ran.out == ""


def test_password_login_and_logout(running: Running, cli: Cli, nobody: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.prompt", lambda *args, **kwargs: kwargs.get("default", "a long password"))
    monkeypatch.setattr("corral.cli.login._password", lambda *args, **kwargs: "a long password")
    assert cli("member", "login", "--change-password").code == 0
    monkeypatch.delenv("CORRAL_TOKEN")
    monkeypatch.delenv("CORRAL_URL")
    assert nobody("login", running.site.url, "--user", "member").code == 0
    token = config.current().token
    assert nobody("login").out.count("member") >= 1
    assert nobody("logout").code == 0
    assert config.load().sites == {}
    monkeypatch.setenv("CORRAL_URL", running.site.url)
    monkeypatch.setenv("CORRAL_TOKEN", token or "")
    ran = nobody("login")
    assert ran.code == 4 and "UNAUTHENTICATED" in ran.err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a link",
        "ftp://x/login#corl_x",
        "https://user:pw@x/login#corl_x",
        "https://x/login?y=1#corl_x",
        "https://x/login#corl_x&ca=12",
    ],
)
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(CorralError) as caught:
        parse_link(text)
    assert caught.value.code == "INVALID_LINK"


def test_plain_http_to_another_machine_is_refused(nobody: Cli) -> None:
    ran = nobody("login", "http://192.0.2.1/login#corl_x", "--login", "me")
    assert ran.code == 1 and "PLAIN_HTTP" in ran.err


def test_the_environment_is_about_the_site_that_it_names(nobody: Cli) -> None:
    config.save(config.Known().with_site(config.Site("https://one.example", "cora_one")))
    env = {**os.environ, "CORRAL_URL": "https://two.example", "CORRAL_TOKEN": "cora_two"}
    assert config.current(env).token == "cora_two"
    # ssh's ProxyCommand asks for a site by its address: another site's token must not go there.
    assert config.site("https://one.example", env).token == "cora_one"
