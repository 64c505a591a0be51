from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching.latency import LatencyCurve

BUCKETS = (1, 2, 4, 8, 16)


def seeded() -> LatencyCurve:
    curve = LatencyCurve(BUCKETS)
    for bucket in BUCKETS:
        curve.seed(bucket, 0.01 + 0.001 * bucket)
    return curve


def test_nothing_is_known_at_first() -> None:
    curve = LatencyCurve(BUCKETS)
    assert not curve.known
    assert curve.seconds(4) == 0.0
    assert curve.spread() == 1.0


def test_a_batch_takes_what_its_bucket_takes() -> None:
    curve = seeded()
    assert curve.seconds(5) == pytest.approx(0.018)
    assert curve.seconds(8) == pytest.approx(0.018)


def test_what_was_not_measured_lies_between_or_is_not_assumed_to_be_cheaper() -> None:
    curve = LatencyCurve(BUCKETS)
    curve.seed(2, 0.010)
    curve.seed(8, 0.022)
    assert curve.seconds(4) == pytest.approx(0.014)
    assert curve.seconds(1) == pytest.approx(0.010)
    assert curve.seconds(16) == pytest.approx(0.044)
    assert curve.seconds(32) == pytest.approx(0.088)


def test_a_larger_bucket_is_never_faster() -> None:
    curve = LatencyCurve(BUCKETS)
    curve.seed(4, 0.02)
    curve.seed(8, 0.01)
    assert curve.seconds(8) == pytest.approx(0.02)


def test_one_bucket_slowing_down_tells_about_the_others() -> None:
    curve = seeded()
    for _ in range(60):
        curve.observe(8, 2 * 0.018)
    assert curve.seconds(8) == pytest.approx(0.036, rel=0.02)
    assert curve.seconds(1) > 1.5 * 0.011


def test_a_pause_hardly_moves_it() -> None:
    curve = seeded()
    curve.observe(8, 1.8)
    assert curve.seconds(8) == pytest.approx(0.018, rel=0.06)


def test_the_first_measurement_of_a_bucket_is_taken_as_it_is() -> None:
    curve = LatencyCurve(BUCKETS)
    curve.observe(3, 0.5)
    assert curve.seconds(4) == pytest.approx(0.5)


def test_spread_is_that_of_the_latest_batches() -> None:
    curve = seeded()
    for number in range(200):
        curve.observe(8, 0.018 * (1.5 if number % 20 == 0 else 1.0))
    assert 1.3 < curve.spread(0.99) < 1.7
    assert curve.spread(0.5) == pytest.approx(1.0, abs=0.05)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1e-6, 1e3)), min_size=1, max_size=60))
def test_it_is_finite_positive_and_rises_whatever_was_measured(seen: list[tuple[int, float]]) -> None:
    curve = LatencyCurve(BUCKETS)
    for size, seconds in seen:
        curve.observe(size, seconds)
    times = [curve.seconds(bucket) for bucket in BUCKETS]
    assert all(0 < seconds < math.inf for seconds in times)
    assert all(low <= high * (1 + 1e-12) for low, high in itertools.pairwise(times))


@pytest.mark.parametrize("buckets", [(), (0, 1), (2, 2), (4, 2)])
def test_buckets_must_rise(buckets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="bucket"):
        LatencyCurve(buckets)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_what_is_no_measurement_is_refused(size: int, seconds: float) -> None:
    curve = LatencyCurve(BUCKETS)
    with pytest.raises(ValueError, match="measurement"):
        curve.observe(size, seconds)
    assert not curve.known
