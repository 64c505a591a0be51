"""What follows when a batch fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facefleet.batching import SizeLimit, run_batch
from facefleet.errors import DeviceLostError, InferenceError, OutOfMemoryError


@given(st.integers(1, 40), st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(0, 40))
def test_each_item_runs_or_fails_once_in_order(count: int, limit: int, bad: set[int], room: int) -> None:
    done: list[int] = []
    failures: dict[int, Exception] = {}

    def run(items: Sequence[int]) -> None:
        if len(items) > room:
            raise OutOfMemoryError("too many")
        if bad & set(items):
            raise InferenceError("bad item")
        done.extend(items)

    def failed(item: int, error: Exception) -> None:
        assert item not in failures
        failures[item] = error

    size = SizeLimit(limit)
    run_batch(run, list(range(count)), size, failed)
    assert done == sorted(done)
    assert sorted([*done, *failures]) == list(range(count))
    if room:
        assert set(failures) == bad & set(range(count))
    else:
        assert all(isinstance(error, OutOfMemoryError) for error in failures.values())


def test_the_limit_is_remembered() -> None:
    sizes: list[int] = []

    def run(items: Sequence[int]) -> None:
        sizes.append(len(items))
        if len(items) > 5:
            raise OutOfMemoryError("too many")

    limit = SizeLimit(16)
    for _ in range(2):
        run_batch(run, list(range(16)), limit, lambda item, error: pytest.fail(f"{item}: {error}"))
    assert limit.size == 4
    assert sizes == [16, 8, 4, 4, 4, 4, 4, 4, 4, 4]


def test_a_lost_device_ends_it() -> None:
    def run(items: Sequence[int]) -> None:
        raise DeviceLostError("gone")

    with pytest.raises(DeviceLostError):
        run_batch(run, [1, 2], SizeLimit(8), lambda item, error: pytest.fail("not its fault"))
