"""How long a join token lives, and what a join with it comes to (spec 10, spec 40)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from corral.domain import join_tokens
from corral.domain.errors import Refusal

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("ttl", [60, 3600, 604800])
def test_a_token_lives_a_minute_to_a_week(ttl: int) -> None:
    assert join_tokens.asked({}, ttl).ttl == timedelta(seconds=ttl)


@pytest.mark.parametrize("ttl", [0, 59, 604801, -1, 10**30, 60.0, "3600", True, None, [], {}, float("nan")])
def test_another_ttl_or_type_is_refused(ttl: object) -> None:
    with pytest.raises(Refusal) as refused:
        join_tokens.asked({}, ttl)
    assert refused.value.code == "INVALID_TTL"


@pytest.mark.parametrize("key", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n", "٠" * 64])
def test_a_machines_key_is_256_bits_in_hex(key: str) -> None:
    with pytest.raises(Refusal) as refused:
        join_tokens.machine_key(key)
    assert refused.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("revoked", "used", "life_s", "code"),
    [
        (False, False, 1, None),
        (False, False, 0, "TOKEN_EXPIRED"),
        (False, True, 1, "TOKEN_USED"),
        (False, True, -1, "TOKEN_USED"),
        (True, False, 1, "TOKEN_UNKNOWN"),
        (True, False, -1, "TOKEN_UNKNOWN"),
    ],
)
def test_why_a_new_key_may_not_join(revoked: bool, used: bool, life_s: int, code: str | None) -> None:
    refusal = join_tokens.why_not(join_tokens.Found(revoked, used, NOW + timedelta(seconds=life_s)), NOW)
    assert (refusal.code if refusal else None) == code
