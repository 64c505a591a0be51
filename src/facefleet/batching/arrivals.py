"""What came in lately, in bins of time: rates, and the queue that it would have made.

Owns the counts of a sliding window. Refuses clocks and locks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ArrivalTrace:
    """Counts of arrivals in equal bins, the latest `window_s` seconds of them.

    Args:
        bin_s: Width of a bin.
        window_s: How far back.
    """

    def __init__(self, bin_s: float, window_s: float) -> None:
        if not 0 < bin_s <= window_s:
            raise ValueError(f"not a window: {window_s} s in bins of {bin_s} s")
        self.bin_s = bin_s
        self._counts = np.zeros(math.ceil(window_s / bin_s))
        self._first: int | None = None
        self._bin = 0

    def add(self, count: int, now: float) -> None:
        """So many items arrived."""
        self._advance(now)
        self._counts[self._bin % len(self._counts)] += count

    def counts(self, now: float) -> Floats:
        """Items a bin, oldest first, since the first arrival or for the window; without the bin that is not over."""
        if self._first is None:
            return np.zeros(0)
        self._advance(now)
        length = min(self._bin - self._first, len(self._counts) - 1)
        ring = np.arange(self._bin - length, self._bin) % len(self._counts)
        return self._counts[ring]

    def rate(self, now: float, seconds: float) -> float:
        """Arrivals a second of the latest `seconds`, or of the time since the first arrival."""
        latest = self.counts(now)[-max(round(seconds / self.bin_s), 1) :]
        return float(latest.mean() / self.bin_s) if len(latest) else 0.0

    def least_rate(self, now: float, seconds: float) -> float:
        """`rate`, less what chance may have added: two standard deviations of a Poisson count."""
        latest = self.counts(now)[-max(round(seconds / self.bin_s), 1) :]
        if not len(latest):
            return 0.0
        total = float(latest.sum())
        return max(total - 2 * math.sqrt(total), 0.0) / (len(latest) * self.bin_s)

    def _advance(self, now: float) -> None:
        number = math.floor(now / self.bin_s)
        if self._first is None:
            self._first = self._bin = number
        passed = number - self._bin
        if passed > 0:
            ring = np.arange(self._bin + 1, self._bin + 1 + min(passed, len(self._counts))) % len(self._counts)
            self._counts[ring] = 0.0
            self._bin = number


def local_rate(counts: Floats, bins: int, bin_s: float) -> Floats:
    """Arrivals a second around each bin: the mean of it and the `bins - 1` before.

    Args:
        counts: (n,) items a bin.
        bins: How many bins to look at.
        bin_s: Width of a bin.
    """
    bins = min(max(bins, 1), max(len(counts), 1))
    total = np.concatenate([np.zeros(1), np.cumsum(counts)])
    end = np.arange(1, len(counts) + 1)
    start = np.maximum(end - bins, 0)
    return np.asarray((total[end] - total[start]) / ((end - start) * bin_s), dtype=np.float64)


def backlog(counts: Floats, per_bin: float) -> Floats:
    """The queue after each bin when at most `per_bin` items leave in one.

    The recursion of Lindley ("The theory of queues with a single server", Proc. Cambridge Phil. Soc. 48, 1952),
    ``q[t] = max(0, q[t-1] + a[t] - c)``, in its closed form: the walk minus its running minimum.

    Args:
        counts: (n,) items a bin.
        per_bin: Capacity.
    """
    walk = np.cumsum(counts - per_bin)
    return np.asarray(walk - np.minimum(np.minimum.accumulate(walk), 0.0), dtype=np.float64)


def sampled(counts: Floats, most: int) -> NDArray[np.intp]:
    """The bins of at most so many items, evenly spaced in the order of arrival.

    Args:
        counts: (n,) items a bin.
        most: Most items.

    Returns:
        (m,) rising indices into `counts`; empty where nothing arrived.
    """
    total = np.cumsum(counts)
    items = total[-1] if len(total) else 0.0
    size = int(min(items, most))
    return np.searchsorted(total, (np.arange(size) + 0.5) * items / max(size, 1))


def nearest_rank(values: Floats, quantile: float) -> float:
    """The least of the values that at least this share of them does not exceed.

    Args:
        values: (n,), n at least 1; the order does not matter.
        quantile: Over 0, up to 1.
    """
    place = max(math.ceil(quantile * len(values)) - 1, 0)
    return float(np.partition(values, place)[place])
