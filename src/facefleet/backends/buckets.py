"""Which batches a run is cut into, where only some batch sizes are ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Batch sizes that are made ready; others are padded up."""


def buckets_within(spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Those of `BUCKETS` inside some (least, largest), and the ends of every span; rising."""
    ends = {size for span in spans for size in span}
    return tuple(sorted(ends | {size for size in BUCKETS if any(low <= size <= high for low, high in spans)}))


def cut(count: int, buckets: Sequence[int]) -> list[tuple[int, int]]:
    """How `count` pictures are run.

    A batch is padded up to the next bucket, but never to more than double: rather the largest bucket below it is
    filled, and the rest is a batch of its own. Above the largest bucket it is split.

    Args:
        count: At least 1.
        buckets: Rising.

    Returns:
        (pictures, bucket) of each run; the pictures add up to `count`.
    """
    runs = []
    while count:
        above = next((size for size in buckets if size >= count), None)
        below = max((size for size in buckets if size <= count), default=None)
        if above is not None and (above <= 2 * count or below is None):
            runs.append((count, above))
            return runs
        assert below is not None
        runs.append((below, below))
        count -= below
    return runs
