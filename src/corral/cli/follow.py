"""Following a container's output over a stream, line by line."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from corral.client.config import Site
from corral.client.errors import UNREACHABLE, CorralError
from corral.client.streams import Stream, StreamError, open_stream


def container_lines(site: Site, path: str) -> Iterator[str]:
    """Yield the last lines of a container's output, then each as it comes, until it ends. Errors: `CorralError`."""
    try:
        stream = open_stream(site, path, target="logs")
    except StreamError as error:
        raise CorralError(error.code or UNREACHABLE, error.message, error.details) from error
    quiet, says_nothing = os.pipe()
    out, into = os.pipe()
    thread = threading.Thread(target=_pump, args=(stream, quiet, into), daemon=True)
    thread.start()
    try:
        with os.fdopen(out, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                yield line.rstrip("\r\n")
    finally:
        os.close(says_nothing)  # ends our half of the stream, and with it the pump
        stream.close()


def _pump(stream: Stream, source: int, sink: int) -> None:
    try:
        stream.pump(source, sink)
    except (OSError, ValueError):
        pass  # whoever read has left
    finally:
        os.close(sink)
        os.close(source)
