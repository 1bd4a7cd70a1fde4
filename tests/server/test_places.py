"""What one person may have at once: refused beyond it, given back at the end, forgotten when none is left."""

from __future__ import annotations

import pytest

from corral.domain.errors import Refusal
from corral.server.places import Places


def test_a_person_takes_so_many_places_and_others_have_their_own() -> None:
    places = Places(2, "open streams")
    with places.held("ann"), places.held("ann"):
        with pytest.raises(Refusal, match="You have 2 open streams at once") as caught, places.held("ann"):
            pass
        assert caught.value.code == "RATE_LIMITED"
        with places.held("bob"):
            pass
    with places.held("ann"):
        assert dict(places._taken) == {"ann": 1}
    assert not places._taken
