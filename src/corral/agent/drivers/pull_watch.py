"""A pull is looked at while it goes on, and broken off when something is wrong with it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from corral.agent.drivers.base import DriverError

LOOK_S = 0.5


class Watch:
    """One pull's: a thread that asks `wrong` twice a second, and ends the stream at its first answer."""

    def __init__(self, wrong: Callable[[], DriverError | None]) -> None:
        self._wrong = wrong
        self._over = threading.Event()
        self._stream: socket.socket | None = None
        self.why: DriverError | None = None

    def opened(self, stream: socket.socket) -> None:
        """Take the stream to end."""
        self._stream = stream
        if self.why is not None:
            self._end_stream()

    def look(self) -> None:
        """Look until the pull is over or something is wrong."""
        while self.why is None and not self._over.wait(LOOK_S):
            try:
                self.why = self._wrong()
            except DriverError as error:
                self.why = error
        self._end_stream()

    def _end_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._over.set()


@contextlib.contextmanager
def watching(wrong: Callable[[], DriverError | None]) -> Iterator[Watch]:
    """Watch what the block pulls; raises what was wrong with it in place of what the block raised after that."""
    watch = Watch(wrong)
    thread = threading.Thread(target=watch.look, name="pull-watch", daemon=True)
    thread.start()
    try:
        yield watch
    except DriverError as error:
        if watch.why is None:
            raise
        raise watch.why from error
    finally:
        watch.stop()
        thread.join()
    if watch.why is not None:
        raise watch.why
