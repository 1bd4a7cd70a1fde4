"""A real HTTP server that answers as a test says, request after request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CUT = "cut"
"""Close the connection without an answer: the client cannot know whether the request was done."""


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent as it is, instead of `body`."""


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Scripted:
    url: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def scripted(answers: Sequence[Answer | str]) -> Iterator[Scripted]:
    """Answer each request with the next of `answers`; the last one again and again."""
    left = list(answers)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            text = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                site.asked.append(Asked(self.command, self.path, headers, json.loads(text) if text else None))
                answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, str):
                self.close_connection = True
                return
            body = answer.raw if answer.raw is not None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = Scripted(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
