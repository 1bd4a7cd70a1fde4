"""People's requests from a process of its own: plain sockets, kept alive, so that the server is what is measured.

`send(Requests(...))` starts it and returns what it saw. An HTTP library would cost more CPU than
the control plane does, on the same cores.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.figures import Result, at
from corral.client.config import Site

GRACE_S = 60.0


@dataclass(frozen=True)
class Requests:
    """What to send. `path` and `body` may hold `@`: the request's number takes its place."""

    path: str
    method: str = "GET"
    body: str = ""
    clients: int = 1
    count: int = 0
    """Requests in all; 0: as many as fit into `seconds`."""
    seconds: float = 0.0
    pause_s: float = 0.0
    """Of each client, from one request to the next; 0: at once."""
    first: int = 0
    """The number of the first request."""


@dataclass
class Seen:
    """What the clients saw."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    answer_bytes: int = 0


def send(site: Site, requests: Requests) -> Result:
    """Send them; return rate and latencies."""
    with sending(site, requests) as result:
        pass
    return result


@contextmanager
def sending(site: Site, requests: Requests) -> Iterator[Result]:
    """Send them while the block runs; what was seen stands in the yielded dictionary after it."""
    order = {"site": {"url": site.url, "token": site.token, "ca": site.ca}, "requests": asdict(requests)}
    result: Result = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        process.stdout.readline()  # it is connected
        yield result
        result.update(json.loads(process.stdout.readline()))
        process.wait(GRACE_S)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Connection:
    """One kept-alive connection."""

    def __init__(self, site: Site) -> None:
        parts = urlsplit(site.url)
        sock = socket.create_connection((parts.hostname or "", parts.port or 443), timeout=30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock: socket.socket = sock
        if parts.scheme == "https":
            context = ssl.create_default_context(cadata=site.ca)
            self._sock = context.wrap_socket(sock, server_hostname=parts.hostname)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {site.token}\r\n"

    def ask(self, method: str, path: str, body: str) -> tuple[int, bytes]:
        """Return status and body of one request."""
        sent = body.encode()
        more = f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n" if sent else ""
        self._sock.sendall(f"{method} {path} HTTP/1.1\r\n{self._head}{more}\r\n".encode() + sent)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, rest = data.partition(b"\r\n\r\n")
        length = _length(head)
        parts = [rest]
        have = len(rest)
        while have < length:
            parts.append(self._more())
            have += len(parts[-1])
        return int(head[9:12]), b"".join(parts)

    def _more(self) -> bytes:
        chunk = self._sock.recv(1 << 18)
        if not chunk:
            raise ConnectionError("the control plane closed the connection")
        return chunk

    def close(self) -> None:
        self._sock.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


class Load:
    """Several clients, each on its own connection and thread, sharing one count."""

    def __init__(self, site: Site, requests: Requests) -> None:
        self._requests = requests
        self._connections = [Connection(site) for _ in range(requests.clients)]
        self._next = requests.first
        self._counting = threading.Lock()
        self._seen = [Seen() for _ in self._connections]

    def run(self) -> Result:
        began = time.perf_counter()
        threads = [
            threading.Thread(target=self._client, args=(connection, seen, began))
            for connection, seen in zip(self._connections, self._seen, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._result(time.perf_counter() - began)

    def _number(self, began: float) -> int | None:
        asked = self._requests
        with self._counting:
            over = time.perf_counter() - began >= asked.seconds if not asked.count else self._next >= self._end
            if over:
                return None
            self._next += 1
            return self._next - 1

    @property
    def _end(self) -> int:
        return self._requests.first + self._requests.count

    def _client(self, connection: Connection, seen: Seen, began: float) -> None:
        asked, due = self._requests, began
        while (number := self._number(began)) is not None:
            path, body = asked.path.replace("@", str(number)), asked.body.replace("@", str(number))
            sent = time.perf_counter()
            status, answer = connection.ask(asked.method, path, body)
            seen.latencies_ms.append((time.perf_counter() - sent) * 1000)
            seen.statuses[status] += 1
            seen.answer_bytes = len(answer)
            due += asked.pause_s
            if asked.pause_s:
                time.sleep(max(0.0, due - time.perf_counter()))
        connection.close()

    def _result(self, wall_s: float) -> Result:
        latencies = sorted(value for seen in self._seen for value in seen.latencies_ms)
        statuses = sum((seen.statuses for seen in self._seen), Counter[int]())
        return {
            "requests": len(latencies),
            "per_second": round(len(latencies) / wall_s, 1),
            "p50_ms": round(at(latencies, 0.5), 2),
            "p99_ms": round(at(latencies, 0.99), 2),
            "most_ms": round(latencies[-1], 2) if latencies else 0.0,
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "answer_kb": round(self._seen[0].answer_bytes / 1000, 1),
            "clients": len(self._seen),
            "wall_s": round(wall_s, 3),
        }


def main() -> None:
    order: Mapping[str, Any] = json.load(sys.stdin)
    load = Load(Site(**order["site"]), Requests(**order["requests"]))
    print("connected", flush=True)
    print(json.dumps(load.run()), flush=True)


if __name__ == "__main__":
    main()
