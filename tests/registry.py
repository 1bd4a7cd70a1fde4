"""A registry of images over plain HTTP on this host, whose layers may be held back or never end."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MIB = 1 << 20
ENDLESS = 1 << 40
CAP = 600 * MIB
"""An endless layer ends here all the same, so that a test that fails fills no disk."""


def layer(mib: int) -> bytes:
    """Return a packed layer of so much that cannot be packed."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        entry = tarfile.TarInfo("content")
        entry.size = mib * MIB
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    return gzip.compress(raw.getvalue(), 1)


def bomb(mib: int) -> bytes:
    """Return a small packed layer that unpacks to so much; a multiple of 64."""
    entry = tarfile.TarInfo("zeros")
    entry.size = mib * MIB
    zeros = gzip.compress(bytes(64 * MIB), 9)
    return gzip.compress(entry.tobuf()) + zeros * (mib // 64) + gzip.compress(bytes(1024))


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


class Registry:
    """What it serves, and what it was asked for."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.goes_on = threading.Event()
        """Until it is set, held layers send nothing."""
        self.held: set[str] = set()
        self.endless = ""
        self.address = ""

    def add(self, name: str, *layers: bytes, endless: bool = False, held: bool = False) -> str:
        """Serve an image of these packed layers; return its reference.

        `endless` adds a layer that never ends; of a `held` image the last layer is held back.
        """
        digests = [_digest(each) for each in layers]
        self.blobs.update(zip(digests, layers, strict=True))
        sizes = [(digest, len(blob)) for digest, blob in zip(digests, layers, strict=True)]
        if endless:
            self.endless = _digest(b"endless")
            sizes.append((self.endless, ENDLESS))
        if held:
            self.held.add(digests[-1])
        self._serve(name, sizes)
        return f"{self.address}/{name}:1"

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold layers back while the block runs, at most."""
        try:
            yield
        finally:
            self.goes_on.set()

    def _serve(self, name: str, sizes: list[tuple[str, int]]) -> None:
        # Podman compares nothing with what unpacked layers are said to be.
        root = {"type": "layers", "diff_ids": [digest for digest, _ in sizes]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": root}).encode()
        self.blobs[_digest(config)] = config
        kind = "application/vnd.oci.image"
        below = [{"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": digest, "size": size} for digest, size in sizes]
        top = {"mediaType": f"{kind}.config.v1+json", "digest": _digest(config), "size": len(config)}
        self.manifests[name] = json.dumps({"schemaVersion": 2, "config": top, "layers": below}).encode()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = self.path.split("/")
        self.registry.asked.append(self.path)
        with contextlib.suppress(OSError):
            if self.path == "/v2/":
                self._answer("text/plain", b"")
            elif parts[3] == "manifests":
                self._answer("application/vnd.oci.image.manifest.v1+json", self.registry.manifests[parts[2]])
            elif parts[4] == self.registry.endless:
                self._never_end()
            else:
                if parts[4] in self.registry.held:
                    self.registry.goes_on.wait(60)
                self._answer("application/octet-stream", self.registry.blobs[parts[4]])

    do_HEAD = do_GET

    def _answer(self, kind: str, body: bytes) -> None:
        self._head(kind, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, kind: str, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _never_end(self) -> None:
        self._head("application/octet-stream", ENDLESS)
        for _ in range(CAP // MIB):
            self.wfile.write(os.urandom(MIB))


@contextlib.contextmanager
def serving() -> Iterator[Registry]:
    """Yield a registry that is served while the block runs."""
    registry = Registry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with registry.holding():
                yield registry
        finally:
            server.shutdown()
            thread.join()
