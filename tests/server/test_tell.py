"""The process that tells a service: one service, over TLS that is checked, and no way out but to judged addresses."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from corral.domain.webhooks import TAKEN
from corral.server import messages as messages_module
from corral.server.messages import NOT_TAKEN, Messages
from tests.receivers import Answer, Receiver, http_receiver

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1"))
BODY = '{"title":"Machine gpu-1 is down","text":"Since noon"}'
TOKEN = "3ccdd113474722377935511fc85d3dd4"  # as Mattermost's look
WITHIN_S = 30


def in_a_process(code: str, *given: object) -> str:
    """Run code in a process of its own, as a hook that judges is for ever; return what it prints."""
    words = [sys.executable, "-c", code, *(str(one) for one in given)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=WITHIN_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def datagrams() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        yield listening


WAYS_OUT = """
import _socket, os, socket, subprocess, sys
from ipaddress import ip_network
from corral.server.tell import only_to

to = ("127.0.0.1", int(sys.argv[1]))
udp, raw = socket.socket(type=socket.SOCK_DGRAM), _socket.socket(type=socket.SOCK_DGRAM)
tcp, local = socket.socket(), socket.socket(socket.AF_UNIX)
only_to([ip_network(text) for text in sys.argv[2:]])
ways = {
    "connect": lambda: socket.socket().connect(to),
    "connect_ex": lambda: socket.socket().connect_ex(to),
    "create_connection": lambda: socket.create_connection(to),
    "a name": lambda: socket.socket().connect(("localhost", to[1])),
    "sendto over tcp": lambda: tcp.sendto(b"x", socket.MSG_FASTOPEN, to),
    "udp connect": lambda: udp.connect(to),
    "udp sendto": lambda: udp.sendto(b"x", to),
    "udp sendmsg": lambda: udp.sendmsg([b"x"], [], 0, to),
    "below the socket module": lambda: raw.sendto(b"x", to),
    "a local socket": lambda: local.connect("/dev/log"),
    "a program": lambda: subprocess.run(["true"]),
    "a shell": lambda: os.system("true"),
    "a fork": lambda: os.fork() or os._exit(0),
}
for name, way in ways.items():
    try:
        way()
    except PermissionError:
        continue
    except OSError:
        pass
    print(name)
"""


def test_no_way_out_leads_to_an_address_inside(datagrams: socket.socket) -> None:
    assert in_a_process(WAYS_OUT, datagrams.getsockname()[1]) == ""
    with pytest.raises(BlockingIOError):
        datagrams.recv(10)


def test_an_opened_network_is_told_by_tcp_only(datagrams: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", datagrams.getsockname()[1])):
        went = in_a_process(WAYS_OUT, datagrams.getsockname()[1], "127.0.0.0/8").splitlines()
    assert went == ["connect", "connect_ex", "create_connection", "sendto over tcp"]
    with pytest.raises(BlockingIOError):
        datagrams.recv(10)


READS = """
import json, sys
from apprise import AppriseAsset
from corral.server.tell import service

for url in json.loads(sys.argv[1]):
    made = service(url, AppriseAsset(http_redirects=False))
    print(made.service_name if made else "-")
"""


def test_it_takes_one_service_as_the_library_reads_it_and_nothing_else() -> None:
    """Whatever the rule of the domain says: it does not read addresses with the library's own eyes."""
    mattermost = f"mmosts://example.com/{TOKEN}"
    taken = [mattermost, f"{mattermost}?channel=%23ops", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/%23ops"]
    refused = [
        *("rsyslog://127.0.0.1:514/daemon", f"json://example.com/{TOKEN}", f"mmost://example.com/{TOKEN}"),
        *(f"{mattermost}?channel=a;verify=no", f"{mattermost}/#x?verify=no", f"{mattermost}?redirect=yes"),
        "workflows://example.com/wf/s1g/#?template=/etc/hostname",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/?template=/etc/hostname",
        "mailto://u:p@example.com?+X-Header=1",
    ]
    lines = in_a_process(READS, json.dumps([*taken, *refused])).splitlines()
    assert lines == ["Mattermost", "Mattermost", "Slack", *["-"] * len(refused)]


def send(target: str, messages: Messages | None = None) -> object:
    return asyncio.run((messages or Messages()).send(target, [BODY], LOOPBACK))


def test_a_second_service_in_an_address_is_told_nothing(datagrams: socket.socket) -> None:
    port = datagrams.getsockname()[1]
    for between in (",", ";"):
        send(f"mmosts://127.0.0.1:1/{TOKEN}{between}rsyslog://127.0.0.1:{port}/daemon")
        with pytest.raises(BlockingIOError):
            datagrams.recv(10)


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """An HTTPS server that the process believes in."""
    with http_receiver(tmp_path / "ca", "localhost") as made:
        given = {**messages_module._environment(), "REQUESTS_CA_BUNDLE": str(tmp_path / "ca/tls/ca.pem")}
        monkeypatch.setattr(messages_module, "_environment", lambda: given)
        made.answer = lambda _: Answer(200)
        yield made


def test_a_service_on_a_host_of_its_own_is_told(chat: Receiver) -> None:
    assert send(f"mmosts://localhost:{chat.port}/{TOKEN}") == TAKEN
    assert [one.path for one in chat.received] == [f"/hooks/{TOKEN}"]


def test_a_service_that_redirects_is_not_followed(chat: Receiver) -> None:
    with http_receiver() as inside:
        for status in (302, 307, 308):
            chat.answer = lambda _, status=status: Answer(status, {"Location": inside.url})  # type: ignore[misc]
            outcome = send(f"mmosts://localhost:{chat.port}/{TOKEN}")
            assert getattr(outcome, "error", "") == NOT_TAKEN
        assert len(chat.received) == 3 and not inside.received


def test_a_certificate_that_is_not_believed_in_ends_it(tmp_path: Path) -> None:
    with http_receiver(tmp_path / "ca", "localhost") as unknown:
        assert send(f"mmosts://localhost:{unknown.port}/{TOKEN}") != TAKEN
        assert not unknown.received
