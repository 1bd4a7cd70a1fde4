"""What the kernel's lines say of GPUs (spec 40): every form that drivers have, and whatever else may come."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain.kernel_lines import Said, Verdict, place, read

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "gpu_kernel_lines.tsv"


def verdict(text: str) -> Verdict | None:
    said = read(text)
    return said.verdict if said else None


def xid(number: int, rest: str = "") -> Verdict | None:
    return verdict(f"NVRM: Xid (PCI:0000:3f:00): {number}{rest}")


def test_every_recorded_line_is_read_as_it_should_be() -> None:
    if not CASES.exists():
        pytest.skip("the recorded lines are not beside this checkout")
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
