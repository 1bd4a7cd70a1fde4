"""The hosted cluster's short name and its limit (spec 10, "Kinds of cluster")."""

from __future__ import annotations

import pytest

from corral.domain import clusters
from corral.domain.errors import Refusal


@pytest.mark.parametrize(
    ("taken", "slug"),
    [
        (set(), "default"),
        ({"default"}, "cloud"),
        ({"default", "cloud"}, "hosted-cloud"),
        ({"default", "cloud", "hosted-cloud"}, "hosted-cloud-2"),
        ({"cloud"}, "default"),
    ],
)
def test_the_hosted_cluster_takes_the_first_free_short_name(taken: set[str], slug: str) -> None:
    assert clusters.hosted_slug(taken) == slug


def test_unused_tokens_count_toward_the_limit() -> None:
    clusters.check_room(clusters.Room(limit=10, machines=6, tokens=3))
    with pytest.raises(Refusal) as refused:
        clusters.check_room(clusters.Room(limit=10, machines=6, tokens=4))
    assert refused.value.code == "LIMIT_REACHED"
