"""Getting a release: its exact checksum or nothing; trouble on the way is no failure (security cases 8 and 9)."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from corral.agent import release
from corral.agent.release import PYZ, SUMS, Refused, Unreachable, Wanted
from corral.agent.site import Site
from corral.server import tls
from corral.server.config import Config

BODY = os.urandom(300_000)
SUM = hashlib.sha256(BODY).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
FOLDER = "/api/v1/agent/artefact"
GOOD = f"{SUM}  {PYZ}\n"


@dataclass
class Served:
    """What the next requests get, by file name."""

    server: http.server.HTTPServer
    url: str = ""
    sums: bytes = GOOD.encode()
    body: bytes = BODY
    status: dict[str, int] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    """Close the connection after so many bytes of the body."""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def served() -> Iterator[Served]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what.asked.append(self.path)
            name = self.path.rpartition("/")[2]
            data = what.sums if name == SUMS else what.body
            self.send_response(what.status.get(name, 200))
            for key, value in what.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if name == SUMS else data[: what.cut_at])

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    what = Served(server, f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield what
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetch(served: Served, folder: Path, size: int = len(BODY), path: str = FOLDER, ca: str = "") -> Path:
    into = folder / release.BESIDE / PYZ
    want = Wanted("2.0", SUM, size, path)
    release.fetch(Site.at(served.url, ca), want, into, lambda: False)
    return into


def test_a_release_is_downloaded_whole_beside_the_installed_one(served: Served, tmp_path: Path) -> None:
    (tmp_path / PYZ).write_text("old")
    path = fetch(served, tmp_path)
    assert path.read_bytes() == BODY
    assert served.asked == [f"{FOLDER}/{SUMS}", f"{FOLDER}/{PYZ}"]
    assert (tmp_path / PYZ).read_text() == "old"


@pytest.mark.parametrize(
    "sums",
    [
        "",
        f"{OTHER}  {PYZ}\n",
        f"{SUM}  x{PYZ}\n",
        f"{SUM}  {PYZ}.sig\n",
        f"{SUM}  ./{PYZ}\n",
        f"{SUM}  {PYZ} extra\n",
        f"{SUM}  corral-agentxpyz\n",
        f"{GOOD}{GOOD}",
        f"{GOOD}{OTHER}  {PYZ}\n",
        f"{SUM.upper()}  {PYZ}\n",
        f"{SUM[:-1]}  {PYZ}\n",
        f"  {PYZ}\n",
    ],
)
def test_anything_but_one_exact_entry_refuses_before_the_file_is_asked_for(
    served: Served, tmp_path: Path, sums: str
) -> None:
    served.sums = sums.encode()
    with pytest.raises(Refused, match="nothing was changed"):
        fetch(served, tmp_path)
    assert served.asked == [f"{FOLDER}/{SUMS}"]
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_of_the_same_length_are_refused(served: Served, tmp_path: Path) -> None:
    served.body = bytes([BODY[0] ^ 1]) + BODY[1:]
    with pytest.raises(Refused, match="does not match its checksum"):
        fetch(served, tmp_path)


def test_a_file_that_is_longer_than_was_said_is_refused_without_being_read_on(served: Served, tmp_path: Path) -> None:
    served.body = BODY * 10
    with pytest.raises(Refused, match="longer than the site says"):
        fetch(served, tmp_path)
    assert (tmp_path / release.BESIDE / PYZ).stat().st_size <= len(BODY)


@pytest.mark.parametrize("file", [SUMS, PYZ])
@pytest.mark.parametrize("status", [404, 429, 500, 502, 503])
def test_a_site_that_does_not_give_it_now_is_asked_again_later(
    served: Served, tmp_path: Path, file: str, status: int
) -> None:
    served.status[file] = status
    served.headers["Retry-After"] = "17"
    with pytest.raises(Unreachable, match=f"HTTP {status}") as later:
        fetch(served, tmp_path)
    assert later.value.wait_s == 17


@pytest.mark.parametrize("cut_at", [0, 1, 65_536, len(BODY) - 1])
def test_a_download_that_is_cut_short_is_no_failure_of_the_release(served: Served, tmp_path: Path, cut_at: int) -> None:
    served.cut_at = cut_at
    with pytest.raises(Unreachable, match="cut short"):
        fetch(served, tmp_path)
    served.cut_at = None
    assert fetch(served, tmp_path).read_bytes() == BODY


def test_a_redirect_is_not_followed(served: Served, tmp_path: Path) -> None:
    served.status[SUMS] = 302
    served.headers["Location"] = f"{served.url}/elsewhere"
    with pytest.raises(Unreachable, match="HTTP 302"):
        fetch(served, tmp_path)
    assert served.asked == [f"{FOLDER}/{SUMS}"]


def test_it_goes_through_the_proxy_that_the_agent_was_put_on_with(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", served.url)
    monkeypatch.setenv("no_proxy", "")
    assert fetch(replace(served, url="http://127.0.0.1:9"), tmp_path).read_bytes() == BODY
    assert served.asked == [f"http://127.0.0.1:9{FOLDER}/{file}" for file in (SUMS, PYZ)]


def test_only_the_ca_that_the_machine_joined_with_is_trusted(served: Served, tmp_path: Path) -> None:
    def prepared(folder: str) -> tls.Tls:
        (tmp_path / folder).mkdir()
        config = Config("sqlite://", tmp_path / folder, host="0.0.0.0", public_url="https://127.0.0.1:1")
        return tls.prepare(config, datetime.now(timezone.utc))

    ours, others = prepared("ours"), prepared("others")
    assert ours.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.cert, ours.key)
    served.server.socket = context.wrap_socket(served.server.socket, server_side=True, do_handshake_on_connect=False)
    served.url = served.url.replace("http:", "https:")
    assert fetch(served, tmp_path, ca=ours.ca_pem or "").read_bytes() == BODY
    for ca in (others.ca_pem or "", ""):
        with pytest.raises(Unreachable, match="certificate verify failed"):
            fetch(served, tmp_path, ca=ca)


def test_a_site_that_is_not_there_is_asked_again_later(served: Served, tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        fetch(replace(served, url="http://127.0.0.1:9"), tmp_path)


@pytest.mark.parametrize(("size", "path"), [(0, FOLDER), (1 << 40, FOLDER), (len(BODY), "http://elsewhere/")])
def test_what_the_site_tells_is_held_within_bounds(served: Served, tmp_path: Path, size: int, path: str) -> None:
    with pytest.raises(Refused):
        fetch(served, tmp_path, size, path)
    assert served.asked == []


def test_a_full_disk_refuses_and_says_so(served: Served) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = Path(tempfile.mkdtemp(prefix="corral-update-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], check=True)
    try:
        with pytest.raises(Refused, match="is full: free space"):
            fetch(served, folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_a_folder_that_cannot_be_written_refuses_and_says_so(served: Served, tmp_path: Path) -> None:
    (tmp_path / "opt").write_text("a file")
    with pytest.raises(Refused, match=os.strerror(errno.ENOTDIR)):
        fetch(served, tmp_path / "opt")
