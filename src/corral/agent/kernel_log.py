"""What the kernel says of GPUs (spec 40, "GPUs and their health": from the start of this boot; kernel records only).

Reads /dev/kmsg, which begins with the oldest record that the kernel still has. Any user may write
look-alikes there, but not as the kernel: those have another facility. The server judges the lines; here they
are only picked, kept until it has confirmed them, and told apart by the kernel's own sequence number.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.agent.inventory.files import printable
from corral.protocol.gpu_faults import KernelLine
from corral.protocol.messages import Condition

KMSG = Path("/dev/kmsg")
RECORDS_A_TIME = 2_000
"""Read in one go: a boot's whole log must not hold up the agent."""
RECORD_BYTES = 16 * 1024
"""More than the kernel's longest record."""
KEPT, SENT = 1_000, 200
"""Lines kept until they are confirmed, and of them in one report."""
ALIKE = 4
"""Kept of one slot and number: what an application causes a thousand times holds up no other GPU's fault."""
LINE_CHARACTERS = 500
RETRY_S = 60.0
_HEADER = re.compile(rb"([0-9]{1,10}),([0-9]{1,19}),[0-9]+,[^;]*;(.*)", re.DOTALL)
_KERNEL = 0
"""The facility of the kernel's own records."""
_OF_GPUS = re.compile(
    r"NVRM: .*(?:Xid|fallen off the bus|RmInitAdapter failed)"
    r"|nvidia-nvswitch[0-9]+: SXid"
    r"|amdgpu \S+ .*(?:reset|wedged|uncorrectable hardware errors)"
)
_LIKE = re.compile(r"(?:NVRM: Xid|nvidia-nvswitch[0-9]+: SXid) \([^)]{0,40}\): [0-9]+|.{0,60}")
_PROCESS = re.compile(r"pid=[^,]*(?:, name=[^,]*)?")
_NUMBER = re.compile(r"0x0*[1-9a-fA-F][0-9a-fA-F_]*|[1-9][0-9a-fA-F_]*")
"""That is not zero: a register that is may be all that tells a fatal error from a corrected one."""


@dataclass(frozen=True)
class Record:
    seq: int
    text: str


@dataclass(frozen=True)
class Kept:
    line: KernelLine
    words: str
    """Without process and numbers: what says the same in other numbers has the same."""


def record(line: bytes) -> Record | None:
    """Return a record of the kernel's own; None for what a program wrote, a continuation, or what is no record."""
    found = _HEADER.fullmatch(line)
    if found is None or int(found[1]) >> 3 != _KERNEL:
        return None
    return Record(int(found[2]), found[3].decode("utf-8", "replace"))


class KernelLog:
    """Not thread-safe; nothing of it waits. `path` None: there is none, and nothing is said of that."""

    def __init__(self, path: Path | None = KMSG, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._fd: int | None = None
        self._retry_at = float("-inf")
        self._rest = b""
        self._kept: dict[str, list[Kept]] = {}
        """By slot and number, the oldest first."""
        self._news = False
        self.newest = -1
        """Sequence number of the newest record that was read; -1 = none."""
        self.trouble = ""
        """Why the log cannot be read ("" = it can)."""

    def poll(self) -> bool:
        """Read what came since; return whether there are new lines about GPUs. Never raises."""
        self._news = False
        try:
            if self._opened():
                self._read()
        except OSError as error:
            self._give_up(error)
        return self._news

    def lines(self) -> tuple[KernelLine, ...]:
        """Return the lines that are not confirmed, oldest first; of many only the first."""
        lines = (kept.line for alike in self._kept.values() for kept in alike)
        return tuple(sorted(lines, key=lambda line: line.seq)[:SENT])

    def confirmed(self, seq: int) -> None:
        """Forget the lines up to this one: the server has judged them."""
        left = {like: [kept for kept in alike if kept.line.seq > seq] for like, alike in self._kept.items()}
        self._kept = {like: alike for like, alike in left.items() if alike}

    def conditions(self) -> tuple[Condition, ...]:
        """Return what to say when the log cannot be read."""
        if not self.trouble:
            return ()
        text = (
            f"faults that the GPU driver writes to the kernel's log are not seen: {self._path}: {self.trouble}; "
            "run the agent as root on the host, or give its container /dev/kmsg"
        )
        return (Condition("kernel_log_unreadable", text, blocking=False),)

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _opened(self) -> bool:
        if self._fd is None:
            if self._path is None or self._clock() < self._retry_at:
                return False
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._rest, self.trouble = b"", ""
        return True

    def _read(self) -> None:
        assert self._fd is not None
        for _ in range(RECORDS_A_TIME):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._rest = b""  # the kernel threw records away before they were read; the next is the oldest it has
                continue
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[:RECORD_BYTES]
            for line in whole:
                self._take(record(line))

    def _take(self, said: Record | None) -> None:
        if said is None or said.seq <= self.newest:
            return
        self.newest = said.seq
        if _OF_GPUS.match(said.text):
            self._keep(KernelLine(said.seq, printable(said.text, LINE_CHARACTERS)))

    def _keep(self, line: KernelLine) -> None:
        """Of many that are alike the first and the newest are kept, and of each wording one: news count more."""
        alike = self._kept.get(_like(line), [])
        words = _NUMBER.sub("#", _PROCESS.sub("", line.text))
        if len(alike) >= ALIKE:
            said = [at for at, kept in enumerate(alike) if kept.words == words]
            del alike[said[-1] if said else -1]
            self._news |= not said
        else:
            self._news = True
            if sum(map(len, self._kept.values())) >= KEPT:
                self._make_room()
        self._kept[_like(line)] = [*alike, Kept(line, words)]

    def _make_room(self) -> None:
        like = max(self._kept, key=lambda like: len(self._kept[like]))
        self._kept[like].pop()
        if not self._kept[like]:
            del self._kept[like]

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.trouble = error.strerror or type(error).__name__
        self._retry_at = self._clock() + RETRY_S


def _like(line: KernelLine) -> str:
    found = _LIKE.match(line.text)
    return found[0] if found else ""
