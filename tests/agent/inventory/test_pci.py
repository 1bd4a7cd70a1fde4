"""PCI bus ids: one spelling, one order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.inventory import pci


@pytest.mark.parametrize("text", ["00000000:1B:00.0", "0000:1b:00.0", "1b:00.0", "0000:1B:00"])
def test_the_spellings_of_nvml_and_kernel_become_one(text: str) -> None:
    assert pci.normal(text) == "0000:1b:00.0"


@pytest.mark.parametrize("text", ["", "GPU-1", "0000:1b", "0000:1b:00.9", "0000:1b:00.0\n\x1b"])
def test_what_is_no_bus_id_is_none(text: str) -> None:
    assert pci.normal(text) == ""


def test_a_wide_domain_is_kept() -> None:
    assert pci.normal("00010000:01:00.0") == "10000:01:00.0"


def test_the_order_is_by_number_and_unknown_slots_come_last() -> None:
    slots = ["", "10000:01:00.0", "0000:9a:00.0", "0000:0a:00.0", "0001:01:00.0"]
    assert sorted(slots, key=pci.order) == ["0000:0a:00.0", "0000:9a:00.0", "0001:01:00.0", "10000:01:00.0", ""]


@given(st.text(max_size=20))
def test_normal_is_stable_and_never_raises(text: str) -> None:
    assert pci.normal(pci.normal(text)) == pci.normal(text)
