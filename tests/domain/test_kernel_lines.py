"""What the kernel's lines say of GPUs (spec 40): every form that drivers have, and whatever else may come."""

from __future__ import annotations

import csv
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent import kernel_log
from corral.domain import kernel_lines
from corral.domain.kernel_lines import Said, Verdict, place, read

CASES = Path(__file__).with_name("gpu_kernel_lines.tsv")
"""Lines of real machines: what is to be read in them."""


def verdict(text: str) -> Verdict | None:
    said = read(text)
    return said.verdict if said else None


def xid(number: int, rest: str = "") -> Verdict | None:
    return verdict(f"NVRM: Xid (PCI:0000:3f:00): {number}{rest}")


def test_every_recorded_line_is_read_as_it_should_be() -> None:
    with CASES.open(encoding="utf-8") as file:
        cases = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(cases) > 40
    wrong = {case["line"]: (_told(read(case["line"])), _right(case)) for case in cases}
    assert {line: told for line, told in wrong.items() if told[0] != told[1]} == {}


def _right(case: dict[str, str]) -> tuple[str, ...]:
    return case["pci"].removesuffix(".0"), case["xid"], case["pid_process"], case["fatal"]


def _told(said: Said | None) -> tuple[str, ...]:
    if said is None:
        return "-", "-", "-", "no"
    kind, _, rest = said.code.partition("_")
    code = {"xid": rest, "sxid": f"SXid {rest}", "amd": f"amd:{rest.replace('_', '-')}"}.get(kind, "-")
    where = f"switch {said.slot}" if said.of_switch else said.slot
    return where, code, said.process or "-", "yes" if said.verdict is Verdict.FENCE else "no"


def test_nonfatal_is_not_fatal() -> None:
    assert xid(149, ", NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x0)") is Verdict.FENCE
    assert xid(149, ", NETIR_LINK_EVT Nonfatal XC0 i0 Link 01 (0x0)") is Verdict.EVENT
    assert xid(144, ", SAW_MVB Non-fatal XC0") is Verdict.EVENT
    assert xid(144, ", something new") is Verdict.LOOK
    assert xid(144) is Verdict.LOOK


@pytest.mark.parametrize("action", [1, 2, 4, 6, 7, 8, 15])
def test_a_recovery_action_that_needs_a_reset_fences(action: int) -> None:
    assert xid(154, f", GPU recovery action changed from 0x0 (None) to {action:#x} (Some)") is Verdict.FENCE


@pytest.mark.parametrize("action", [0, 3, 5])
def test_a_recovery_action_without_a_reset_does_not(action: int) -> None:
    assert xid(154, f", GPU recovery action changed from 0x1 (Reset) to {action:#x} (Some)") is Verdict.EVENT


def test_a_recovery_action_that_is_cut_off_is_something_to_look_at() -> None:
    assert xid(154, " (") is Verdict.LOOK


@pytest.mark.parametrize(
    ("first", "last", "fences"),
    [
        ("0x1", "0x0", False),
        ("0x800000", "0x0", False),
        ("0x40000001", "0x0", False),
        ("0x0", "0x0", True),
        ("0x3", "0x0", True),
        ("0x1", "0x1", True),
    ],
)
def test_nvlink_errors_that_the_link_corrects_do_not_fence(first: str, last: str, fences: bool) -> None:
    registers = f"({first}, 0x0, 0x0, 0x0, 0x0, 0x0, {last})"
    found = xid(74, f", pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14{registers}")
    assert found is (Verdict.FENCE if fences else Verdict.EVENT)


def test_both_texts_of_a_gpu_off_the_bus_are_one_fault() -> None:
    for line in (
        "NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.",
        "NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:06:00 has fallen off the bus.",
    ):
        said = read(line)
        assert said is not None
        assert (said.slot, said.code, said.verdict) == ("0000:06:00", "xid_79", Verdict.FENCE)


def test_an_amd_reset_is_judged_by_its_end() -> None:
    amd = "amdgpu 0000:06:00.0: amdgpu: "
    assert verdict(amd + "GPU reset begin!") is Verdict.NOTHING
    assert verdict(amd + "GPU reset succeeded, trying to resume") is Verdict.NOTHING
    assert verdict(amd + "GPU reset(2) failed") is Verdict.FENCE
    assert verdict(amd + "GPU reset end with ret = -110") is Verdict.FENCE
    assert verdict(amd + "GPU reset end with ret = 0") is Verdict.EVENT
    assert verdict(amd + "[drm] device wedged, needs recovery") is Verdict.FENCE
    assert verdict(amd + "[drm] device wedged, but recovered through reset") is Verdict.EVENT


def test_an_error_count_that_cannot_be_true_fences_nothing() -> None:
    amd = "amdgpu 0000:0b:00.0: "
    assert verdict(amd + "1 uncorrectable hardware errors detected in umc block") is Verdict.FENCE
    assert verdict(amd + "1048560 uncorrectable hardware errors detected in umc block") is Verdict.EVENT
    assert verdict(amd + "0 uncorrectable hardware errors detected in umc block") is Verdict.EVENT
    assert verdict(amd + "no uncorrectable hardware errors detected in umc block") is None


def test_a_place_is_the_same_in_every_spelling() -> None:
    for slot in ("0000:3F:00", "PCI:0000:3f:00", "00000000:3F:00.0", "0000:3f:00.0", "3f:00.0"):
        assert place(slot) == (0, 0x3F, 0)
    assert place("0009:01:00") == (9, 1, 0)
    for nonsense in ("", "gpu", "0000:3f", "0000:3f:00:00:00", "\0"):
        assert place(nonsense) is None


def test_a_number_of_many_digits_is_no_xid() -> None:
    assert read(f"NVRM: Xid (PCI:0000:3f:00): {'9' * 400}") is None


_PIECES = st.sampled_from(
    [
        *(
            "NVRM: ",
            "Xid (",
            "PCI:",
            "0000:3f:00",
            "): ",
            "154",
            "74",
            "149",
            ", ",
            "to 0x",
            "link 1(",
            "0x0, ",
            "Fatal",
        ),
        *(
            "amdgpu ",
            "0000:06:00.0: ",
            "GPU reset(1) ",
            "failed",
            "1 uncorrectable hardware errors detected in umc block",
        ),
        *("nvidia-nvswitch1: SXid (", "pid=", "name=", "\0", "\n", "٣", "99999999999", "(", ")"),
    ]
)


@given(st.one_of(st.text(max_size=600), st.lists(_PIECES, max_size=30).map("".join)))
def test_hostile_lines_never_raise(text: str) -> None:
    said = read(text)
    assert said is None or (len(said.code) <= 40 and len(said.slot) <= 32)


_LONG = 100_000
_HOSTILE = [
    "1" * _LONG,
    "0" * _LONG,
    "a" * _LONG,
    "x" * _LONG,
    " " * _LONG,
    "0x" * (_LONG // 2),
    "{1" * (_LONG // 2),
    "{" + "1" * _LONG,
    "0x" + "0" * _LONG,
    "0x1, " * (_LONG // 5),
    "link 1(" * (_LONG // 7),
    "link " + "1" * _LONG,
    "pid=1, name=" * (_LONG // 12),
    "pid=" + "1" * _LONG,
    "GPU reset(" * (_LONG // 10),
    "Non-fatal" * (_LONG // 9),
    "NVRM: Xid (" * (_LONG // 11),
    "NVRM: GPU 0000:06:00.0" * (_LONG // 22),
    ";" * _LONG,
    "1," * (_LONG // 2),
]
_BEGINNINGS = [
    *("", "NVRM: Xid (PCI:0000:01:00): 74", "NVRM: GPU 0000:06:00.0: ", "amdgpu 0000:01:00.0: ", "NVRM: "),
    *(
        "nvidia-nvswitch1: SXid (PCI:0000:01:00): 7",
        "link 1(0x0",
        "1 uncorrectable hardware errors detected in ",
        "3,1,",
    ),
]


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Fail what would take minutes: a quadratic search through such texts."""

    def late(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_ANCHORED = {"_PARTS", "_HEADER", "_OF_GPUS", "_LIKE"}
"""These are only tried at a text's beginning."""
_PATTERNS = [
    (module.__name__, name)
    for module in (kernel_lines, kernel_log)
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern)
]


@pytest.mark.parametrize(("module", "name"), _PATTERNS)
def test_no_line_however_long_costs_more_than_its_length(module: str, name: str) -> None:
    pattern = vars({"corral.domain.kernel_lines": kernel_lines}.get(module, kernel_log))[name]
    texts = [beginning + hostile for beginning in _BEGINNINGS for hostile in _HOSTILE]
    with _at_most(30):
        for text in texts:
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            if name in _ANCHORED:
                pattern.match(given)
                pattern.fullmatch(given)
            else:
                assert sum(1 for _ in pattern.finditer(given)) <= _LONG
