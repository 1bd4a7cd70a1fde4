"""Secrets: read as made, and a mistyped one is told from an unknown one (spec 40, "Joining")."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from corral.domain import secrets

RANDOM = st.binary(min_size=secrets.RANDOM_BYTES, max_size=secrets.RANDOM_BYTES)
PREFIX = st.sampled_from([secrets.JOIN, secrets.API, secrets.LINK])


@given(PREFIX, RANDOM, st.sampled_from(["", "\n", " ", "\ufeff", "\r\n", "\t"]))
def test_a_secret_is_read_as_it_was_made(prefix: str, random: bytes, around: str) -> None:
    made = secrets.make(prefix, random)
    assert secrets.parse(prefix, around + made.text + around) == made
    assert made.public_id in made.text


@given(RANDOM, st.data())
def test_one_mistyped_letter_is_noticed(random: bytes, data: st.DataObject) -> None:
    text = secrets.make(secrets.API, random).text
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567_"))
    assume(text[at] != letter)
    assert secrets.parse(secrets.API, text[:at] + letter + text[at + 1 :]) is None


@given(RANDOM, st.integers(0, 60))
def test_a_secret_cut_short_is_noticed(random: bytes, length: int) -> None:
    text = secrets.make(secrets.JOIN, random).text
    assume(length < len(text))
    assert secrets.parse(secrets.JOIN, text[:length]) is None


@given(RANDOM)
def test_a_secret_of_another_kind_is_none(random: bytes) -> None:
    assert secrets.parse(secrets.API, secrets.make(secrets.JOIN, random).text) is None


@given(st.text())
def test_whatever_comes_is_read_or_not_but_never_an_error(text: str) -> None:
    found = secrets.parse(secrets.API, text)
    assert found is None or found.text in text
