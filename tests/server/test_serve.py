"""Starting and ending the control plane: what is refused with the next step, and which proxies are believed."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from corral.server.config import Config
from corral.server.doctor import examine
from corral.server.serve import notify, open_database, open_site
from corral.server.setup_error import SetupError
from corral.store import migrate
from corral.store.engine import Database


@contextlib.contextmanager
def serving(state: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `corral site serve` on a free loopback port; yields the process and the site's address."""
    command = [sys.executable, "-m", "corral", "site", "serve", "--state-dir", str(state), "--port", "0", *arguments]
    with (state.parent / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "answers at" in said, (state.parent / "log").read_text()
        yield process, said.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_sqlite_is_migrated_at_start(tmp_path: Path) -> None:
    db = open_database(Config(f"sqlite:///{tmp_path}/corral.db", tmp_path))
    assert migrate.current(db) == migrate.head()
    db.close()


def test_postgresql_is_migrated_only_when_told_to(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="corral site migrate"):
        open_database(Config(postgres_url, tmp_path))  # the server's own database: nothing of Corral's is in it


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    config = Config(f"sqlite:///{tmp_path}/corral.db", tmp_path)
    db = open_database(config)
    with db.write() as tx:
        tx.run(text("UPDATE alembic_version SET version_num = '9999'"))
    db.close()
    with pytest.raises(SetupError, match="newer release"):
        open_database(config)


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    config = Config("postgresql://corral:geheim@127.0.0.1:1/corral", tmp_path)
    with pytest.raises(SetupError, match="does not answer") as caught:
        open_database(config)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://x", "postgresql+asyncpg://h/d", "nonsense", "", "postgresql://h:port/d"])
def test_a_database_that_is_none_is_said_with_the_next_step(tmp_path: Path, url: str) -> None:
    with pytest.raises(SetupError, match="postgresql://USER@HOST/NAME"), open_site(Config(url, tmp_path)):
        pass
    assert "postgresql://USER@HOST/NAME" in next(iter(examine(Config(url, tmp_path)))).next_step


@pytest.mark.parametrize("folder", ["/proc/nope", "{tmp_path}/file/state", "/dev/null"])
def test_a_state_folder_that_cannot_be_is_said_with_the_next_step(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    config = Config(f"sqlite:///{tmp_path}/corral.db", Path(folder.format(tmp_path=tmp_path)), port=0)
    with pytest.raises(SetupError, match="--state-dir"), open_site(config):
        pass


@pytest.mark.parametrize(
    "url",
    ["http://x y", "ftp://a", "https://", "x", "https://a:99999", "https://u@a", "https://a/?b", "https://a/$(id)"],
)
def test_an_address_that_no_link_can_be_made_of_is_refused(tmp_path: Path, url: str) -> None:
    config = Config(f"sqlite:///{tmp_path}/corral.db", tmp_path, port=0, public_url=url)
    with pytest.raises(SetupError, match="--public-url"), open_site(config):
        pass


def test_wrong_settings_show_no_traceback(tmp_path: Path) -> None:
    for command in (["serve", "--port", "0"], ["migrate"], ["operator-link", "root"], ["restored"]):
        arguments = [*command, "--state-dir", str(tmp_path), "--database", "mysql://x"]
        done = subprocess.run(
            [sys.executable, "-m", "corral", "site", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "'mysql' is no kind of database" in done.stderr


def test_a_taken_port_is_said_with_the_next_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(f"sqlite:///{tmp_path}/corral.db", tmp_path, port=taken.getsockname()[1])
        with pytest.raises(SetupError, match="--port"), open_site(config):
            pass


def test_the_address_people_use_is_the_one_that_was_given_or_bound(tmp_path: Path) -> None:
    config = Config(f"sqlite:///{tmp_path}/corral.db", tmp_path, port=0)
    with open_site(config) as site:
        assert site.config.public_url == f"http://127.0.0.1:{site.config.port}" and site.config.port != 0
    given = Config(config.database, tmp_path, port=0, public_url="https://corral.example/", tls="own")
    with open_site(given) as site:
        assert site.app.state.public_url == "https://corral.example"
        assert site.app.state.ca_fingerprint == site.tls.fingerprint is not None


def test_the_ca_is_served_and_every_answer_hides_what_serves_it(tmp_path: Path) -> None:
    with serving(tmp_path / "site", "--tls", "own") as (_, url):
        pem = (tmp_path / "site" / "tls" / "ca.pem").read_text()
        import ssl

        with httpx.Client(verify=ssl.create_default_context(cadata=pem)) as http:
            answer = http.get(f"{url}/api/v1/ca.pem")
            assert answer.text == pem and "server" not in answer.headers


def test_sigterm_ends_it_in_order_also_with_an_open_stream(tmp_path: Path) -> None:
    with serving(tmp_path / "site") as (process, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in idle.recv(4096)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    log = (tmp_path / "log").read_text()
    assert '"stopped"' in log and "Traceback" not in log
    db = Database(f"sqlite:///{tmp_path}/site/corral.db")
    with db.read() as tx:
        assert tx.scalar(text("SELECT lease_holder FROM sites")) is None
    db.close()


def test_it_takes_all_the_files_it_may(tmp_path: Path) -> None:
    with serving(tmp_path / "site") as (process, _):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
    row = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()
    assert row[3] == row[4] == str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_a_forwarded_address_is_believed_only_from_a_named_proxy(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.9", "Authorization": "Bearer nonsense"}
    body = {"login": "nobody", "password": "wrong"}
    for arguments, seen in (([], "127.0.0.1"), (["--trusted-proxy", "127.0.0.1"], "203.0.113.9")):
        state = tmp_path / seen / "site"
        state.parent.mkdir()
        with serving(state, *arguments) as (_, url):
            assert httpx.post(f"{url}/api/v1/login", json=body, headers=forwarded).status_code == 401
        db = Database(f"sqlite:///{state}/corral.db")
        with db.read() as tx:
            addresses = tx.all(text("SELECT address FROM journal WHERE type = 'user.login_refused'"))
        db.close()
        assert [row["address"] for row in addresses] == [seen]


def test_behind_a_proxy_nobody_else_is_answered(tmp_path: Path) -> None:
    arguments = ["--tls", "proxy", "--trusted-proxy", "192.0.2.1", "--public-url", "https://corral.example"]
    with serving(tmp_path / "site", *arguments) as (process, url):
        assert url == "https://corral.example"
        port = _port_of(process.pid)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 403


def _port_of(pid: int) -> int:
    """Return the TCP port that the process listens on."""
    inodes = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].split(":")[1], 16)
    raise AssertionError("it listens nowhere")


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify("READY=1")
        assert heard.recv(100) == b"READY=1"
    notify("STOPPING=1")  # systemd is gone: nothing happens
