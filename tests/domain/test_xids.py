"""The table of Xid rules (spec 40): every number that is known has one, and only one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from corral.domain.xids import RULES, UNKNOWN, Policy, rule

FACTS = Path(__file__).parents[2].parent / "shared" / "facts" / "xid_policy.tsv"
SAME = {
    "event": {Policy.EVENT, Policy.LOOK},
    "FENCE": {Policy.FENCE, Policy.NVLINK},
    "CONDITIONAL": {Policy.FATAL, Policy.RECOVERY},
}


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


def test_the_table_is_that_of_the_facts() -> None:
    if not FACTS.exists():
        pytest.skip("the facts that the table was made from are not beside this checkout")
    with FACTS.open(encoding="utf-8") as file:
        facts = {int(row["xid"]): row["OUR_POLICY"] for row in csv.DictReader(file, delimiter="\t")}
    assert set(facts) == set(RULES)
    assert {
        number: RULES[number].policy for number, said in facts.items() if RULES[number].policy not in SAME[said]
    } == {}
