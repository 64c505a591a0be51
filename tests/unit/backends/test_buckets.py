"""How batches are cut."""

from __future__ import annotations

import pytest

from facefleet.backends.buckets import BUCKETS, buckets_within, cut


@pytest.mark.parametrize(
    ("count", "buckets", "runs"),
    [
        (1, BUCKETS, [(1, 1)]),
        (5, BUCKETS, [(5, 8)]),
        (300, BUCKETS, [(256, 256), (44, 64)]),
        (5, (1, 64), [(1, 1)] * 5),
        (33, (1, 64), [(33, 64)]),
        (3, (8, 16), [(3, 8)]),
        (17, (1, 2, 4, 8, 16), [(16, 16), (1, 1)]),
    ],
)
def test_cut(count, buckets, runs):
    assert cut(count, buckets) == runs


def test_buckets_of_profiles():
    assert buckets_within([(1, 16)]) == (1, 2, 4, 8, 16)
    assert buckets_within([(3, 12)]) == (3, 4, 8, 12)
    assert buckets_within([(1, 4), (48, 48)]) == (1, 2, 4, 48)
