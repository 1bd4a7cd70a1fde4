"""The table of Xid rules (spec 40): every number that is known has one, and only one."""

from __future__ import annotations

import pytest

from corral.domain.xids import RULES, UNKNOWN, Policy, rule


def numbers(text: str) -> set[int]:
    """Return the numbers of e.g. "13-15,17"."""
    spans = [part.split("-") for part in text.split(",")]
    return {number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)}


_LOOK = "61,157,161,165,168"
_TOLD = (
    "13-45,47,49-53,55-56,59-61,63,65-73,75-78,80,82-93,96-109,111-118,121-135,137-139,141-142,"
    "151-153,156-157,159-166,168,170,174,176"
)
DECIDED = {
    Policy.FENCE: numbers("46,48,54,57-58,62,64,79,81,94-95,110,119-120,136,140,143,155,158,167,169,171-173,175"),
    Policy.NVLINK: numbers("74"),
    Policy.FATAL: numbers("144-150"),
    Policy.RECOVERY: numbers("154"),
    Policy.LOOK: numbers(_LOOK),
    Policy.EVENT: numbers(_TOLD) - numbers(_LOOK),
}
"""The policy that was decided for every number that the driver has."""


def test_an_unknown_number_is_told_and_fences_nothing() -> None:
    assert rule(999) is UNKNOWN
    assert UNKNOWN.policy is Policy.LOOK


def test_what_an_application_does_wrong_fences_no_gpu() -> None:
    assert {rule(number).policy for number in (13, 31, 43, 45, 69, 109)} == {Policy.EVENT}


def test_memory_bus_and_firmware_faults_fence() -> None:
    assert {rule(number).policy for number in (48, 64, 79, 94, 95, 119, 120, 140)} == {Policy.FENCE}


def test_every_rule_says_why_and_what_in_few_words() -> None:
    assert len(RULES) == 164
    assert all(0 < len(known.meaning) <= 60 and known.reason for known in RULES.values())


@pytest.mark.parametrize("policy", Policy)
def test_the_table_decides_each_number_as_it_was_decided(policy: Policy) -> None:
    assert {number for number, known in RULES.items() if known.policy is policy} == DECIDED[policy]


def test_each_number_is_decided_once() -> None:
    assert sum(len(numbers) for numbers in DECIDED.values()) == len(set().union(*DECIDED.values())) == 164
