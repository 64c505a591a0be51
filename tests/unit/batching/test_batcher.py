"""The batching policy, with a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching import Batcher, BatchPolicy


def test_full_batches_leave_at_once() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(3, 1.0))
    for i in range(2):
        batcher.add(i, shape="a", now=0.0)
    assert not batcher.due(0.5)
    batcher.add(2, shape="a", now=0.5)
    assert batcher.due(0.5)
    assert batcher.take(0.5) == [0, 1, 2]
    assert len(batcher) == 0
    assert batcher.take(9.0) == []


def test_late_batches_leave() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(8, 1.0))
    batcher.add(1, shape="a", now=0.0)
    batcher.add(2, shape="b", now=0.5)
    assert not batcher.due(0.99)
    assert batcher.due(1.0)
    assert batcher.take(1.0) == [1]
    assert not batcher.due(1.0)
    assert batcher.take(1.0) == [2]  # asked for, though not due


def test_shapes_do_not_mix_and_work_is_shared() -> None:
    batcher: Batcher[tuple[str, int]] = Batcher(BatchPolicy(4, 1.0))
    for i in range(6):
        batcher.add(("ab"[i % 2], i), shape="ab"[i % 2], now=float(i))
    assert batcher.take(2.0, at_most=2) == [("a", 0), ("a", 2)]
    assert batcher.take(2.0, at_most=2) == [("b", 1), ("b", 3)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10)), max_size=60),
    st.integers(1, 7),
    st.integers(1, 9),
)
def test_every_item_leaves_once_in_order(items: list[tuple[int, float]], max_batch: int, share: int) -> None:
    batcher: Batcher[tuple[int, int]] = Batcher(BatchPolicy(max_batch, 1.0))
    now = 0.0
    out: list[tuple[int, int]] = []
    for number, (shape, wait) in enumerate(items):
        now += wait
        batcher.add((shape, number), shape=shape, now=now)
        if number % 3 == 2:
            out += batcher.take(now, at_most=share)
    while batch := batcher.take(now):
        assert len(batch) <= max_batch
        assert len({shape for shape, _ in batch}) == 1
        out += batch
    assert sorted(number for _, number in out) == list(range(len(items)))
    for shape in range(4):
        numbers = [number for each, number in out if each == shape]
        assert numbers == sorted(numbers)
