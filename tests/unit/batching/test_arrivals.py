from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching.arrivals import ArrivalTrace, backlog, local_rate, weighted_quantile


def test_counts_of_the_window_without_the_bin_that_is_not_over() -> None:
    trace = ArrivalTrace(1.0, 4.0)
    assert len(trace.counts(0.0)) == 0
    for now, count in [(10.5, 1), (11.2, 2), (11.9, 3), (13.0, 4)]:
        trace.add(count, now)
    assert trace.counts(13.5).tolist() == [1, 5, 0]
    assert trace.counts(14.0).tolist() == [5, 0, 4]
    assert trace.counts(1000.0).tolist() == [0, 0, 0]


def test_rate_is_that_of_the_latest_seconds() -> None:
    trace = ArrivalTrace(0.5, 20.0)
    for step in range(20):
        trace.add(1 if step < 10 else 5, step * 0.5)
    assert trace.rate(10.0, 2.0) == pytest.approx(10.0)
    assert trace.rate(10.0, 20.0) == pytest.approx(6.0)
    assert ArrivalTrace(0.5, 20.0).rate(10.0, 2.0) == 0.0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.floats(0.5, 20.0))
def test_backlog_is_the_recursion(counts: list[int], per_bin: float) -> None:
    queue, expected = 0.0, []
    for count in counts:
        queue = max(0.0, queue + count - per_bin)
        expected.append(queue)
    assert backlog(np.asarray(counts, float), per_bin) == pytest.approx(expected, abs=1e-6)


def test_local_rate_looks_back() -> None:
    counts = np.asarray([1.0, 3.0, 5.0, 7.0])
    assert local_rate(counts, 2, 0.5).tolist() == [2.0, 4.0, 8.0, 12.0]
    assert local_rate(counts, 100, 0.5)[-1] == 8.0
    assert len(local_rate(np.zeros(0), 2, 0.5)) == 0


def test_weighted_quantile_counts_weights() -> None:
    values = np.asarray([3.0, 1.0, 2.0])
    assert weighted_quantile(values, np.asarray([1.0, 98.0, 1.0]), 0.98) == 1.0
    assert weighted_quantile(values, np.asarray([1.0, 98.0, 1.0]), 0.99) == 2.0
    assert weighted_quantile(values, np.asarray([1.0, 98.0, 1.0]), 1.0) == 3.0
    assert weighted_quantile(values, np.zeros(3), 0.99) == 0.0


def test_a_window_shorter_than_a_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        ArrivalTrace(1.0, 0.5)
