"""How long a batch of each size takes: seeded by the warm-up, kept up to date by what runs.

Owns one number a bucket, one common drift, and the spread around them. Refuses clocks and locks: the caller measures
and holds a lock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

_CLIP = 0.25
"""Most that one measurement counts, in log seconds: a pause of ten times the usual moves the curve by 1 % at first."""
_DRIFT_GAIN, _BUCKET_GAIN = 0.03, 0.01
_RUN, _FASTER = 8, 5.0
"""After so many measurements in a row on one side, which is no chance, the curve follows so many times faster."""
_SPREAD_SAMPLES, _SPREAD_LEAST = 256, 16


class LatencyCurve:
    """Seconds per bucket.

    The time of bucket b is modeled as ``drift * base[b]``. A measurement moves both by an exponentially weighted mean
    of log ratios that are clipped first (the influence function of Huber, "Robust estimation of a location
    parameter", Annals of Mathematical Statistics 35(1), 1964, eq. 1.5). `drift` moves faster: a device that gets hot
    or is shared slows down at every size, so sizes that did not run lately follow too.

    Args:
        buckets: The sizes that run without padding, rising.

    Raises:
        ValueError: No buckets, or they do not rise from 1 on.
    """

    def __init__(self, buckets: Iterable[int]) -> None:
        self.buckets = tuple(buckets)
        if not self.buckets or self.buckets[0] < 1:
            raise ValueError(f"buckets must be positive sizes: {self.buckets}")
        if any(low >= high for low, high in zip(self.buckets, self.buckets[1:], strict=False)):
            raise ValueError(f"buckets must rise: {self.buckets}")
        self._base: dict[int, float] = {}
        self._drift = 0.0
        self._run = 0
        self._ratios: deque[float] = deque(maxlen=_SPREAD_SAMPLES)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._base)

    def seed(self, bucket: int, seconds: float) -> None:
        """Set what a bucket takes, as its warm-up measured it.

        Args:
            bucket: A size; it counts for the bucket that it runs at.
            seconds: Positive.

        Raises:
            ValueError: Not a size or a time.
        """
        self._check(bucket, seconds)
        self._base[self.padded(bucket)] = math.log(seconds) - self._drift

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` items took `seconds`.

        Raises:
            ValueError: Not a size or a time.
        """
        self._check(size, seconds)
        bucket = self.padded(size)
        expected = self._base.get(bucket)
        if expected is None:
            self._base[bucket] = math.log(seconds) - self._drift
            return
        off = math.log(seconds) - self._drift - expected
        self._ratios.append(off)
        side = 1 if off > 0 else -1
        self._run = self._run + side if self._run * side > 0 else side
        step = min(max(off, -_CLIP), _CLIP) * (_FASTER if abs(self._run) >= _RUN else 1.0)
        self._drift += _DRIFT_GAIN * step
        self._base[bucket] += _BUCKET_GAIN * step

    def seconds(self, size: int) -> float:
        """What a batch of `size` items usually takes; 0.0 while nothing is known.

        Between buckets that were measured it is a straight line; below the least it is the least (a smaller batch is
        not assumed to be faster), above the largest it grows in proportion (a larger one is not assumed to be
        cheaper). A bucket is never taken to be faster than a smaller one.
        """
        known = sorted(self._base)
        if not known:
            return 0.0
        bucket = self.padded(size)
        place = bisect_left(known, bucket)
        if place == 0:
            return self._time(known[0])
        floor = max(self._time(smaller) for smaller in known[:place])
        if place == len(known):
            return max(floor, self._time(known[-1]) * bucket / known[-1])
        if known[place] == bucket:
            return max(floor, self._time(bucket))
        low, high = known[place - 1], known[place]
        share = (bucket - low) / (high - low)
        return max(floor, (1 - share) * self._time(low) + share * self._time(high))

    def spread(self, quantile: float = 0.99) -> float:
        """How many times its usual time a batch takes at a quantile, of the latest 256; 1.0 while not known."""
        if len(self._ratios) < _SPREAD_LEAST:
            return 1.0
        ordered = sorted(self._ratios)
        return math.exp(max(ordered[min(int(quantile * len(ordered)), len(ordered) - 1)], 0.0))

    def padded(self, size: int) -> int:
        """The bucket that `size` items run at; beyond the largest, the size itself."""
        place = bisect_left(self.buckets, size)
        return self.buckets[place] if place < len(self.buckets) else size

    def _time(self, bucket: int) -> float:
        return math.exp(self._base[bucket] + self._drift)

    @staticmethod
    def _check(size: int, seconds: float) -> None:
        if size < 1 or not 0 < seconds < math.inf:
            raise ValueError(f"not a measurement: {size} items in {seconds} s")
