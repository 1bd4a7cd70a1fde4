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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
"""Kept of one slot and number, or of each wording one where there are more of those: what an application causes a
thousand times holds up no other GPU's fault."""
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
_PLACE = r"(?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_LIKE = re.compile(
    r"(?:NVRM: Xid|nvidia-nvswitch[0-9]+: SXid) \((?P<slot>[^)]{0,40})\): (?P<number>[0-9]+)"
    rf"|.{{0,40}}?(?P<place>{_PLACE})"
)
_PROCESS = re.compile(r"pid=[^,\s]*(?:, name=[^,]*)?")
_TELLING = (
    r"\(0x[0-9a-fA-F]+(?:, 0x[0-9a-fA-F]+){6}\)"  # the registers of an NVLink
    r"| to 0x0*[0-9a-fA-F]{1,2}\b"  # the recovery action that the driver now asks for
)
_COUNT = r"[0-9]+(?= uncorrectable hardware errors)"
"""Its digits tell a true count from one that no hardware can have."""
_NUMBERS = (
    r"0x[0-9a-fA-F_]+|\b[0-9a-fA-F]{8,}\b"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]+\b|[0-9]+"  # a hexadecimal without 0x has a digit, or else it is a word
)
_NUMBER = re.compile(f"(?P<telling>{_TELLING})|(?P<count>{_COUNT})|{_NUMBERS}")


@dataclass(frozen=True)
class Record:
    seq: int
    text: str


class Like(NamedTuple):
    """What a line is about. An AMD GPU's lines have no number."""

    slot: str
    number: str


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
        self._kept: dict[Like, dict[str, list[KernelLine]]] = {}
        """By what they are about and by their wording, the oldest first."""
        self._count = 0
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
        lines = (line for wordings in self._kept.values() for said in wordings.values() for line in said)
        return tuple(sorted(lines, key=lambda line: line.seq)[:SENT])

    def confirmed(self, seq: int) -> None:
        """Forget the lines up to this one: the server has judged them."""
        kept, self._kept, self._count = self._kept, {}, 0
        for like, wordings in kept.items():
            for words, said in wordings.items():
                for line in said:
                    if line.seq > seq:
                        self._add(like, words, line)

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
        """Of many that are alike keep the first and the newest, and of each wording one: that is dropped for none that
        is said again. A new wording is news."""
        like, words = _like(line.text), _words(line.text)
        wordings = self._kept.get(like, {})
        enough, full = sum(map(len, wordings.values())) >= ALIKE, self._count >= KEPT
        self._news |= not enough or words not in wordings
        if not ((enough or full) and self._dropped_for(like, words)) and full:
            self._make_room()
        self._add(like, words, line)

    def _add(self, like: Like, words: str, line: KernelLine) -> None:
        self._kept.setdefault(like, {}).setdefault(words, []).append(line)
        self._count += 1

    def _dropped_for(self, like: Like, words: str) -> bool:
        """Drop the newest line of what is said most often of those alike, if any is said twice with one of `words`."""
        often = {said: len(lines) + (said == words) for said, lines in self._kept.get(like, {}).items()}
        most = max(often, key=lambda said: (often[said], said == words), default="")
        if often.get(most, 0) < 2:
            return False
        self._kept[like][most].pop()
        self._count -= 1
        return True

    def _make_room(self) -> None:
        """Drop the newest line of what is said most often, or where nothing is said twice, of the slot with most."""
        said = max((lines for wordings in self._kept.values() for lines in wordings.values()), key=len)
        if len(said) > 1:
            said.pop()
        else:
            self._drop_wording()
        self._count -= 1

    def _drop_wording(self) -> None:
        """Drop the newest wording of the busiest slot, and there of the number that has most of them."""
        slots: Counter[str] = Counter()
        for like, wordings in self._kept.items():
            slots[like.slot] += len(wordings)
        ((slot, _),) = slots.most_common(1)
        newest_first = (like for like in reversed(self._kept) if like.slot == slot)
        most = max(newest_first, key=lambda like: len(self._kept[like]))
        self._kept[most].popitem()
        if not self._kept[most]:
            del self._kept[most]

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.trouble = error.strerror or type(error).__name__
        self._retry_at = self._clock() + RETRY_S


def _like(text: str) -> Like:
    found = _LIKE.match(text)
    return Like(found["slot"] or found["place"] or "", found["number"] or "") if found else Like("", "")


def _words(text: str) -> str:
    """Return a line without process and numbers: what says the same in other numbers has the same.

    Numbers that tell a fatal error from a harmless one stay, and whether a number is zero.
    """
    return _NUMBER.sub(_told, _PROCESS.sub("", text))


def _told(number: re.Match[str]) -> str:
    if number["telling"]:
        return number[0]
    if not number[0].strip("0x_"):
        return "0"
    return "#" * len(number[0]) if number["count"] else "#"
