"""What listens where alerts are sent: a real HTTP(S) server, a mail server, and servers that never finish.

with http_receiver() as receiver:
    ...
    assert receiver.received[0].headers["webhook-id"]
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from corral.server import tls
from corral.server.config import Config


@dataclass(frozen=True)
class Received:
    """One POST, as it came."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Receiver:
    url: str
    port: int
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], Answer] = lambda _: Answer()
    trust: ssl.SSLContext | None = None
    """What believes in its certificate, where it has one."""


@contextmanager
def http_receiver(folder: Path | None = None, name: str = "localhost") -> Iterator[Receiver]:
    """Serve HTTP on loopback; with a folder for its CA, HTTPS with a certificate for `name`."""
    receiver = Receiver("", 0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            one = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            receiver.received.append(one)
            answer = receiver.answer(one)
            self.send_response(answer.status)
            for header, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(header, value)
            self.end_headers()
            with suppress(OSError):  # who sent it may not read all of the answer
                self.wfile.write(answer.body)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a sender that goes away, or does not trust us, is no error of this server

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    receiver.url = f"{'https' if folder else 'http'}://{name if folder else '127.0.0.1'}:{receiver.port}"
    if folder is not None:
        receiver.trust = _secure(server, folder, name)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


def _secure(server: ThreadingHTTPServer, folder: Path, name: str) -> ssl.SSLContext:
    config = Config("sqlite://", folder, host="0.0.0.0", public_url=f"https://{name}", tls="own")
    made = tls.prepare(config, datetime.now(timezone.utc))
    assert made.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    # Shaken in the connection's own thread: a client that does not trust us must not end the server.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return ssl.create_default_context(cadata=made.ca_pem)


@contextmanager
def stuck_receiver(begin: bytes = b"", then: bytes = b"") -> Iterator[int]:
    """Accept connections, send `begin`, then a byte of `then` each 50 ms for ever; yields the port."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.05)
    held: list[threading.Thread] = []

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(begin)
            while not ended.wait(0.05):
                if then:
                    connection.sendall(then)

    def accept() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                held.append(threading.Thread(target=drip, args=(connection,)))
                held[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()[1]
    finally:
        ended.set()
        accepting.join(20)
        for thread in held:
            thread.join(20)
        listening.close()


@dataclass
class Mailbox:
    port: int
    mails: list[Message] = field(default_factory=list)
    refuse: bool = False


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """Take mail by SMTP on loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.05)
    box, ended = Mailbox(listening.getsockname()[1]), threading.Event()

    def accept() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    connection.settimeout(20)
                    _take_mail(connection, box)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield box
    finally:
        ended.set()
        thread.join(20)
        listening.close()


def _take_mail(connection: socket.socket, box: Mailbox) -> None:
    lines = connection.makefile("rb")
    connection.sendall(b"220 test\r\n")
    while line := lines.readline():
        word = line.split()[0].upper() if line.split() else b""
        if word == b"DATA":
            connection.sendall(b"354 go on\r\n")
            text = b""
            while (part := lines.readline()) not in (b".\r\n", b""):
                text += part
            box.mails.append(message_from_bytes(text))
        if word == b"QUIT":
            connection.sendall(b"221 bye\r\n")
            return
        if word == b"AUTH":
            connection.sendall(b"235 welcome\r\n")
        elif word == b"EHLO":
            connection.sendall(b"250-test\r\n250 AUTH PLAIN\r\n")
        else:
            connection.sendall(b"554 no\r\n" if box.refuse and word == b"MAIL" else b"250 ok\r\n")
