"""Joining over real HTTP: the key is safe first, a lost answer costs no token, a no is told plainly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from corral.agent import main
from corral.agent.site import BadUrl, Site
from corral.agent.state import KEY, TOMBSTONE, StateFolder, Tombstone

ANSWER = {"machine": "m1", "name": "box", "org": "acme", "cluster": "default", "incarnation": "inc1"}


@dataclass
class Door:
    """What the site answers, and what it was asked."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    look: Callable[[], None] = lambda: None
    cut_at: int | None = None
    """Bytes after which the next good answer breaks off."""

    def refuse(self, status: int, code: str, **headers: str) -> None:
        body = json.dumps({"code": code, "message": f"{code} it is"}).encode()
        self.answers.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, body))


@contextmanager
def door() -> Iterator[Door]:
    site = Door()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            site.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            site.look()
            status, headers, body = site.answers.pop(0) if site.answers else (200, {}, json.dumps(ANSWER).encode())
            raw = f"HTTP/1.1 {status} X\r\n".encode()
            raw += b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items())
            raw += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            cut, site.cut_at = site.cut_at, None
            self.wfile.write(raw if cut is None else raw[:cut])
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Host:
    state: StateFolder
    token: Path

    def join(self, url: str, *more: str, wait: float = 0.0) -> int:
        given = ["--url", url, "--token-file", str(self.token), "--state", str(self.state.path), "--wait", str(wait)]
        return main.main(["join", *given, *more])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    token = tmp_path / "token"
    token.write_bytes(b"\xef\xbb\xbfcorj_a_b_c \r\n")
    return Host(StateFolder(tmp_path / "state"), token)


def test_the_key_is_on_disk_before_the_token_is_shown(host: Host) -> None:
    with door() as site:
        seen = []
        site.look = lambda: seen.append(host.state.key())
        assert host.join(site.url) == 0
        asked = site.asked[0]
        assert seen == [asked["key"]]
        assert (asked["token"], asked["protocol"]) == ("corj_a_b_c", 1)
        assert asked["hostname"]
        machine = host.state.machine()
        assert machine is not None
        assert (machine.url, machine.name, machine.incarnation) == (site.url, "box", "inc1")
        assert not host.token.exists()


def test_an_answer_cut_at_any_byte_is_asked_for_again_with_the_same_key(host: Host) -> None:
    with door() as site:
        length = len(json.dumps(ANSWER)) + 60
        for cut in range(0, length, 7):
            site.cut_at = cut
            assert host.join(site.url) in (3, 0)
            assert host.token.exists() or host.state.machine()
            if host.state.machine():
                break
        assert host.state.machine() or host.join(site.url) == 0
        assert len({asked["key"] for asked in site.asked}) == 1
        assert len(site.asked) > 5


@pytest.mark.parametrize(
    ("status", "code"), [(409, "TOKEN_USED"), (410, "TOKEN_EXPIRED"), (404, "TOKEN_UNKNOWN"), (403, "LIMIT_REACHED")]
)
def test_a_no_is_final_and_told_and_keeps_the_token(
    host: Host, status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with door() as site:
        site.refuse(status, code)
        assert host.join(site.url, wait=30) == 2
        assert f"{code} it is" in capsys.readouterr().err
        assert len(site.asked) == 1
        assert host.token.exists()
        assert host.state.machine() is None


def test_a_site_that_cannot_answer_now_is_asked_again(host: Host) -> None:
    with door() as site:
        site.refuse(503, "UNAVAILABLE", Retry_After="0")
        site.refuse(429, "RATE_LIMITED", Retry_After="1")
        assert host.join(site.url, wait=60) == 0
        assert len(site.asked) == 3


def test_a_site_that_does_not_answer_in_time_is_said_so(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with door() as site:
        url = site.url
    assert host.join(url) == 3
    assert "Run the same command again" in capsys.readouterr().err
    assert host.state.key()
    assert host.token.exists()


def test_a_redirect_gets_neither_token_nor_key(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with door() as site, door() as other:
        site.answers.append((307, {"Location": other.url + "/api/v1/agent/join"}, b""))
        assert host.join(site.url) == 2
        assert "redirect" in capsys.readouterr().err
        assert other.asked == []


def test_joining_again_uses_no_token(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with door() as site:
        assert host.join(site.url) == 0
        host.token.write_text("corj_x_y_z")
        assert host.join(site.url) == 0
        assert len(site.asked) == 1
        assert host.token.exists()
        assert "already" in capsys.readouterr().out


def test_a_removed_machine_joins_anew_with_another_key_once_its_work_has_ended(host: Host) -> None:
    with door() as site:
        assert host.join(site.url) == 0
        old = host.state.key()
        host.token.write_text("corj_x_y_z")
        host.state.write(TOMBSTONE, Tombstone("m1", "box", "removed"))
        assert host.join(site.url) == main.CANNOT
        host.state.write(TOMBSTONE, Tombstone("m1", "box", "removed", done=True))
        assert host.join(site.url) == 0
        assert host.state.key() != old
        assert host.state.tombstone() is None


def test_a_full_or_forbidden_folder_is_said(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.state.path.parent.joinpath("file").write_text("")
    blocked = Host(StateFolder(host.state.path.parent / "file"), host.token)
    with door() as site:
        assert blocked.join(site.url) == main.CANNOT
        assert "cannot be written" in capsys.readouterr().err
        assert site.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://corral.example.com",
        "ftp://x",
        "corral.example.com",
        "",
        "https://",
        "https://u:p@x",
        "http://127.0.0.1.evil",
    ],
)
def test_only_https_or_loopback_is_a_site(url: str, host: Host) -> None:
    with pytest.raises(BadUrl):
        Site.at(url)
    assert host.join(url) == 2
    assert not (host.state.path / KEY).exists()


def test_a_websocket_is_never_less_secure_than_its_site() -> None:
    secure, plain = Site.at("https://corral.test/"), Site.at("http://127.0.0.1:80")
    assert secure.websocket("/a") == "wss://corral.test/a"
    assert secure.websocket("wss://replica.test/a") == "wss://replica.test/a"
    assert plain.websocket("/a") == "ws://127.0.0.1:80/a"
    for site, url in [
        (secure, "ws://corral.test/a"),
        (secure, "https://x/a"),
        (plain, "ws://192.0.2.1/a"),
        (secure, "a"),
    ]:
        with pytest.raises(BadUrl):
            site.websocket(url)
