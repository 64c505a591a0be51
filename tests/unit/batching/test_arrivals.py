from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching.arrivals import ArrivalTrace, backlog, local_rate, nearest_rank, sampled


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


def test_sampled_items_are_spread_evenly_over_what_arrived() -> None:
    counts = np.asarray([0.0, 3.0, 0.0, 1.0])
    assert sampled(counts, 100).tolist() == [1, 1, 1, 3]
    assert sampled(100 * counts, 4).tolist() == [1, 1, 1, 3]
    assert len(sampled(np.zeros(4), 10)) == 0
    assert len(sampled(np.zeros(0), 10)) == 0


def test_nearest_rank() -> None:
    values = np.arange(100, 0, -1.0)
    assert nearest_rank(values, 0.99) == 99.0
    assert nearest_rank(values, 0.5) == 50.0
    assert nearest_rank(values, 1.0) == 100.0
    assert nearest_rank(np.asarray([7.0]), 0.01) == 7.0


def test_a_window_shorter_than_a_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        ArrivalTrace(1.0, 0.5)
