"""Spec 40, "GPUs and their health": the kernel's log. Pipes and files in /dev/kmsg's form; what the real one does is
tried where there is one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import kernel_log
from corral.agent.kernel_log import KMSG, KernelLog, Record, record

KERNEL, KERNEL_ERROR, USER = 6, 3, 14  # facility * 8 + level
XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def line(seq: int, text: str, priority: int = KERNEL_ERROR) -> bytes:
    return f"{priority},{seq},{seq * 1000},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n".encode()


class Pipe:
    """A log that a test writes and an agent reads."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.log = KernelLog(path)
        self.log.poll()
        self._fd = os.open(path, os.O_WRONLY)

    def say(self, *records: bytes) -> bool:
        os.write(self._fd, b"".join(records))
        return self.log.poll()

    def seqs(self) -> list[int]:
        return [one.seq for one in self.log.lines()]

    def close(self) -> None:
        os.close(self._fd)
        self.log.close()


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "kmsg")
    yield made
    made.close()


def test_the_kernels_lines_about_gpus_are_picked_and_others_are_not(pipe: Pipe) -> None:
    assert pipe.say(line(1, "eth0: link up"), line(2, XID), line(3, "amdgpu 0000:0b:00.0: amdgpu: GPU reset(1) failed"))
    assert [(one.seq, one.text) for one in pipe.log.lines()] == [
        (2, XID),
        (3, "amdgpu 0000:0b:00.0: amdgpu: GPU reset(1) failed"),
    ]
    assert pipe.log.newest == 3
    assert not pipe.say(line(4, "eth0: link down"))
    assert pipe.log.newest == 4


@pytest.mark.parametrize(
    "text",
    [
        XID,
        "NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 61",
        "amdgpu 0000:c5:00.0: [drm] device wedged, but recovered through reset",
        "amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block",
    ],
)
def test_every_kind_of_line_that_the_site_judges_is_sent(pipe: Pipe, text: str) -> None:
    assert pipe.say(line(1, text))


def test_a_users_look_alike_is_not_believed(pipe: Pipe) -> None:
    assert not pipe.say(line(1, XID, USER), line(2, XID, 8), line(3, XID, 1 << 9))
    assert pipe.seqs() == []


def test_a_look_alike_within_another_line_is_not_believed(pipe: Pipe) -> None:
    assert not pipe.say(line(1, f"usb 1-1: Product: {XID}", KERNEL), line(2, f"comm: {XID}", KERNEL))


def test_lines_are_kept_until_they_are_confirmed(pipe: Pipe) -> None:
    pipe.say(line(5, XID), line(6, XID), line(9, XID))
    pipe.log.confirmed(-1)
    assert pipe.seqs() == [5, 6, 9]
    pipe.log.confirmed(6)
    assert pipe.seqs() == [9]
    assert not pipe.say(line(9, XID), line(4, XID)), "what was read is not read again"
    assert pipe.seqs() == [9]


def test_a_record_that_comes_in_pieces_is_one(pipe: Pipe) -> None:
    whole = line(1, XID)
    assert not pipe.say(whole[:40])
    assert pipe.say(whole[40:])


def test_nonsense_does_no_harm(pipe: Pipe) -> None:
    pipe.say(b"\n;;;\n,,,;x\n-1,2,3,-;x\n" + b"9" * 9_000 + b"\n" + bytes(range(256)) + b"\n")
    pipe.say(line(7, XID + "\x00\x1b[2J"))
    (one,) = pipe.log.lines()
    assert one.seq == 7
    assert one.text.isprintable()
    assert len(one.text) <= kernel_log.LINE_CHARACTERS


def test_a_long_line_is_cut(pipe: Pipe) -> None:
    pipe.say(line(1, XID + "x" * 2_000))
    assert len(pipe.log.lines()[0].text) == kernel_log.LINE_CHARACTERS


def test_of_a_storm_the_first_and_the_newest_lines_are_kept(pipe: Pipe) -> None:
    for start in range(0, 1_000, 100):
        storm = (XID.replace("79,", "31,").replace("'<unknown>'", str(n)) for n in range(start, start + 100))
        pipe.say(*(line(start + n, text) for n, text in enumerate(storm)))
    assert pipe.seqs() == [0, 1, 2, 999]
    pipe.say(line(1_000, XID), line(1_001, XID.replace("01:00", "02:00").replace("79,", "31,")))
    assert pipe.seqs() == [0, 1, 2, 999, 1_000, 1_001], "another number and another slot are something else"
    pipe.log.confirmed(2)
    assert pipe.seqs() == [999, 1_000, 1_001]


def test_a_storm_that_goes_on_is_no_reason_to_report_at_once(pipe: Pipe) -> None:
    assert all(pipe.say(line(n, XID)) for n in range(kernel_log.ALIKE))
    assert not pipe.say(line(90, XID), line(91, XID))
    assert pipe.say(line(92, XID.replace("79,", "48,")))


@pytest.mark.parametrize(
    ("often", "once"),
    [
        ("149, NETIR_LINK_EVT Nonfatal XC0 i0 Link {n} (0x{n:08x})", "149, NETIR_LINK_EVT Fatal XC0 i0 Link 1 (0x1)"),
        (
            "74, pid={n}, name=x{n}, NVLink: error on link {n}(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
            "74, pid=1, name=x, NVLink: error on link 1(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
        ),
        (
            "154, GPU recovery action changed from 0x{n:x} (Reset) to 0x0 (None)",
            "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ),
    ],
)
def test_the_one_fatal_line_among_many_of_its_number_is_kept(pipe: Pipe, often: str, once: str) -> None:
    for n in range(1, 100):
        pipe.say(line(n, "NVRM: Xid (PCI:0000:01:00): " + (once if n == 50 else often.format(n=n))))
    assert 50 in pipe.seqs()
    assert len(pipe.seqs()) == kernel_log.ALIKE


SEVERAL = "NVRM: Xid (PCI:0000:01:00): "
LINK_74 = SEVERAL + "74, pid=7, name=x, NVLink: fatal error detected on link 3({}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
LINK_149 = SEVERAL + "149, {} {} XC0 i0 Link 01 (0x021425c6 0x00000000)"
ACTION_154 = SEVERAL + "154, GPU recovery action changed from {} to {}"
RAS = "amdgpu 0000:{:02x}:00.0: amdgpu: {} uncorrectable hardware errors detected in umc block"


@pytest.mark.parametrize(
    ("before", "fatal", "after"),
    [
        ([LINK_74.format("0x1")] * 4, LINK_74.format("0x10000"), [LINK_74.format("0x1")] * 3),
        (
            [LINK_149.format(f"UNIT_{unit}", "Nonfatal") for unit in "ABCDE"],
            LINK_149.format("UNIT_A", "Fatal"),
            [LINK_149.format(f"UNIT_{unit}", "Nonfatal") for unit in "FGAH"],
        ),
        (
            [ACTION_154.format(f"0x{n} (Action {chr(65 + n)})", "0x0 (None)") for n in range(1, 8)],
            ACTION_154.format("0x0 (None)", "0x1 (GPU Reset Required)"),
            [ACTION_154.format(f"0x{n} (Action {chr(65 + n)})", "0x3 (Drain P2P)") for n in range(1, 8)],
        ),
        (
            [RAS.format(1, 1_048_560 + n) for n in range(6)],
            RAS.format(1, 3),
            [RAS.format(1, 1_048_566 + n) for n in range(6)],
        ),
        (
            ["amdgpu 0000:01:00.0: amdgpu: GPU reset end with ret = 0"] * 5,
            "amdgpu 0000:01:00.0: amdgpu: GPU reset end with ret = -62",
            ["amdgpu 0000:01:00.0: amdgpu: GPU reset end with ret = 0"] * 5,
        ),
    ],
)
def test_what_is_said_once_is_news_and_is_never_dropped_for_what_is_said_often(
    pipe: Pipe, before: list[str], fatal: str, after: list[str]
) -> None:
    for seq, text in enumerate(before):
        pipe.say(line(seq, text))
    assert pipe.say(line(100, fatal)), "it is reported at once"
    for seq, text in enumerate(after):
        pipe.say(line(200 + seq, text))
    assert 100 in pipe.seqs()


def test_a_count_that_grows_pushes_out_no_other_gpus_fault(pipe: Pipe) -> None:
    failed = "amdgpu 0000:09:00.0: amdgpu: GPU reset(1) failed"
    pipe.say(line(0, RAS.format(1, 1)), line(1, failed))
    for start in range(10, kernel_log.KEPT + 210, 100):
        pipe.say(*(line(n, RAS.format(n % 8, n)) for n in range(start, start + 100)))
    assert 1 in pipe.seqs()
    assert len(pipe.seqs()) < 8 * 4 * kernel_log.ALIKE


def test_channels_and_addresses_in_hexadecimal_are_numbers(pipe: Pipe) -> None:
    fault = SEVERAL + "31, pid=7, name=x, Ch {0}, intr 00000000. MMU Fault: faulted @ 0x7f_{0}"
    channels = [f"{0xA0B0C0 + n * 0x1001:08x}" for n in range(90)]
    letters = ["deadbeef", "fadedcab", "abcdefab", "cabbaged", "deafdeaf", "facefeed"]
    pipe.say(*(line(n, fault.format(channel)) for n, channel in enumerate(channels + letters)))
    assert len(pipe.seqs()) == kernel_log.ALIKE


@pytest.mark.parametrize("number", ["{0}", "31"], ids=["numbers", "wordings"])
def test_one_gpus_flood_of_different_lines_drops_nothing_of_another(pipe: Pipe, number: str) -> None:
    pipe.say(line(0, XID.replace("01:00", "02:00")), line(1, XID))
    for start in range(10, kernel_log.KEPT + 210, 100):
        named = ((n, "".join(chr(103 + int(digit)) for digit in str(n))) for n in range(start, start + 100))
        pipe.say(*(line(n, f"{SEVERAL}{number.format(1_000 + n)}, {name}") for n, name in named))
    assert pipe.seqs()[:2] == [0, 1]
    pipe.say(line(9_000, XID.replace("01:00", "02:00").replace("79,", "48,")))
    pipe.say(line(9_001, f"{SEVERAL}{number.format(9_001)}, once more"))
    kept = []
    while seqs := pipe.seqs():
        kept += seqs
        pipe.log.confirmed(seqs[-1])
    assert kept[-2:] == [9_000, 9_001]
    assert len(kept) == kernel_log.KEPT


def test_what_is_said_again_in_a_full_log_takes_its_own_place(pipe: Pipe) -> None:
    for start in range(0, kernel_log.KEPT, 100):
        pipe.say(
            *(line(n, f"NVRM: Xid (PCI:0000:{n % 250:02x}:00): {1_000 + n}, x") for n in range(start, start + 100))
        )
    pipe.say(*(line(2_000 + n, f"NVRM: Xid (PCI:0000:{n % 250:02x}:00): {1_000 + n}, x") for n in range(50)))
    kept = []
    while seqs := pipe.seqs():
        kept += seqs
        pipe.log.confirmed(seqs[-1])
    assert kept == [*range(50, kernel_log.KEPT), *range(2_000, 2_050)]


def test_a_log_full_of_different_lines_is_bounded_and_hides_no_other_fault(pipe: Pipe) -> None:
    for start in range(0, kernel_log.KEPT + 500, 100):
        pipe.say(*(line(n, XID.replace("79,", f"{n + 1_000},")) for n in range(start, start + 100)))
    pipe.say(line(9_000, XID))
    assert len(pipe.log.lines()) == kernel_log.SENT
    seen = 0
    while (seqs := pipe.seqs()) and 9_000 not in seqs:
        seen += len(seqs)
        pipe.log.confirmed(seqs[-1])
    assert seqs[-1] == 9_000
    assert seen + len(seqs) <= kernel_log.KEPT


def test_a_log_that_cannot_be_read_is_said_and_tried_again(tmp_path: Path) -> None:
    now = [0.0]
    log = KernelLog(tmp_path / "kmsg", clock=lambda: now[0])
    assert not log.poll()
    (condition,) = log.conditions()
    assert (condition.kind, condition.blocking) == ("kernel_log_unreadable", False)
    assert "No such file" in condition.message and "/dev/kmsg" in condition.message
    (tmp_path / "kmsg").write_bytes(line(1, XID))
    assert not log.poll()
    now[0] += kernel_log.RETRY_S
    assert log.poll()
    assert log.conditions() == ()
    log.close()


def test_no_log_says_nothing() -> None:
    log = KernelLog(None)
    assert not log.poll()
    assert (log.lines(), log.conditions(), log.newest) == ((), (), -1)


def test_records_that_were_overwritten_are_skipped(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[OSError | bytes] = [BrokenPipeError(errno.EPIPE, ""), line(50, XID), BlockingIOError()]

    def read(_fd: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert pipe.log.poll()
    monkeypatch.undo()
    assert pipe.seqs() == [50]
    assert pipe.log.conditions() == ()


def test_a_log_that_fails_while_it_is_read_is_opened_again(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_fd: int, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fails)
        pipe.log.poll()
    assert "Input/output error" in pipe.log.conditions()[0].message


def test_a_record_is_read_from_its_header() -> None:
    assert record(b"3,12,555,-,caller=T1;text; with more") == Record(12, "text; with more")
    assert record(b"14,12,555,-;text") is None
    assert record(b" SUBSYSTEM=pci") is None


def test_the_real_log_begins_with_this_boot_and_takes_no_look_alike() -> None:
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg is not here, or may not be read and written")
    log = KernelLog()
    log.poll()
    if log.trouble:
        pytest.skip(f"/dev/kmsg cannot be read here: {log.trouble}")
    newest = log.newest
    with KMSG.open("w") as kmsg:
        kmsg.write("<3>NVRM: Xid (PCI:ffff:ff:1f): 79, a test's look-alike, not the kernel's")
    log.poll()
    assert not [one for one in log.lines() if "look-alike" in one.text]
    assert log.newest >= newest >= -1
    log.close()
