"""How long a batch of each size takes: seeded by the warm-up, kept up to date by what runs.

Owns one number a bucket, one common drift, and the spread around them. Refuses clocks and locks: the caller measures
and holds a lock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

import numpy as np

_CLIP = 0.25
"""Most that one measurement counts, in log seconds: a pause of ten times the usual moves the curve by 1 % at first."""
_SEED_SD = 0.033
"""How far a warm-up is off for one bucket, and for all of them together, in log seconds."""
_NOISE_SD = 0.08
"""How far one batch is off."""
_DRIFT_SD, _BUCKET_SD = 0.0024, 0.0008
"""How far the device, and one bucket of it, wander from a batch to the next."""
_RUN, _FASTER = 8, 8.0
"""After so many measurements in a row on one side, which is no chance, the device wanders so many times faster."""
_DOUBT = 2.0
"""Standard deviations up to which a difference may be chance."""
_SPREAD_SAMPLES, _SPREAD_LEAST = 256, 16


class LatencyCurve:
    """Seconds per bucket.

    The time of bucket b is modeled as ``drift * base[b]``; logs of both wander, and a Kalman filter ("A new approach
    to linear filtering and prediction problems", J. Basic Engineering 82, 1960) follows them, so that a measurement
    moves what is known least: at first the bucket that ran and the device alike, later mostly the device, which gets
    hot or is shared and slows down at every size. Measurements are clipped first (the influence function of Huber,
    "Robust estimation of a location parameter", Annals of Mathematical Statistics 35(1), 1964, eq. 1.5).

    Larger batches are taken to cost no more an item than smaller ones until it is known that they do: a device that
    was measured a few times is not thought to be good at one size by chance.

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
        self._places: dict[int, int] = {}
        self._means = np.zeros(1)
        self._errors = np.zeros((1, 1))
        self._run = 0
        self._ratios: deque[float] = deque(maxlen=_SPREAD_SAMPLES)
        self._smooth: dict[int, float] | None = None

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._places)

    def seed(self, bucket: int, seconds: float) -> None:
        """Set what a bucket takes, as its warm-up measured it.

        Args:
            bucket: A size; it counts for the bucket that it runs at.
            seconds: Positive.

        Raises:
            ValueError: Not a size or a time.
        """
        self._check(bucket, seconds)
        self._set(self.padded(bucket), seconds, _SEED_SD)

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` items took `seconds`.

        Raises:
            ValueError: Not a size or a time.
        """
        self._check(size, seconds)
        bucket = self.padded(size)
        place = self._places.get(bucket)
        if place is None:
            self._set(bucket, seconds, _NOISE_SD)
            return
        off = math.log(seconds) - float(self._means[0] + self._means[place])
        self._ratios.append(off)
        side = 1 if off > 0 else -1
        self._run = self._run + side if self._run * side > 0 else side
        self._errors[0, 0] += (_DRIFT_SD * (_FASTER if abs(self._run) >= _RUN else 1.0)) ** 2
        self._errors[place, place] += _BUCKET_SD**2
        shared = self._errors[0] + self._errors[place]
        gain = shared / (shared[0] + shared[place] + _NOISE_SD**2)
        self._means += gain * min(max(off, -_CLIP), _CLIP)
        self._errors -= np.outer(gain, shared)
        self._smooth = None

    def seconds(self, size: int) -> float:
        """What a batch of `size` items usually takes; 0.0 while nothing is known.

        Between buckets that were measured it is a straight line; below the least it is the least (a smaller batch is
        not assumed to be faster), above the largest it grows in proportion (a larger one is not assumed to be
        cheaper). A bucket is never taken to be faster than a smaller one.
        """
        if self._smooth is None:
            self._smooth = self._smoothed()
        times = self._smooth
        known = list(times)
        if not known:
            return 0.0
        bucket = self.padded(size)
        place = bisect_left(known, bucket)
        if place == 0:
            return times[known[0]]
        floor = max(times[smaller] for smaller in known[:place])
        if place == len(known):
            return max(floor, times[known[-1]] * bucket / known[-1])
        if known[place] == bucket:
            return max(floor, times[bucket])
        low, high = known[place - 1], known[place]
        share = (bucket - low) / (high - low)
        return max(floor, (1 - share) * times[low] + share * times[high])

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

    def _set(self, bucket: int, seconds: float, error: float) -> None:
        """Forget what is known of a bucket, and take this for it."""
        place = self._places.setdefault(bucket, len(self._means))
        if place == len(self._means):
            self._means = np.append(self._means, 0.0)
            self._errors = np.pad(self._errors, (0, 1))
        self._means[place] = math.log(seconds) - self._means[0]
        self._errors[place] = self._errors[:, place] = -self._errors[0]
        self._errors[place, place] = error**2 + self._errors[0, 0]
        self._smooth = None

    def _smoothed(self) -> dict[int, float]:
        """Bucket -> seconds, smaller buckets first.

        Pools adjacent violators (Ayer et al., "An empirical distribution function for sampling with incomplete
        information", Annals of Mathematical Statistics 26(4), 1955) where the violation may be chance.
        """
        blocks: list[tuple[list[int], float, float]] = []  # buckets, log seconds an item, weight
        for bucket, place in sorted(self._places.items()):
            mean, weight = float(self._means[0] + self._means[place]), 1 / float(self._errors[place, place])
            block = ([bucket], mean - math.log(bucket), weight)
            while blocks and 0 < block[1] - blocks[-1][1] <= _DOUBT * math.sqrt(1 / block[2] + 1 / blocks[-1][2]):
                before = blocks.pop()
                weight = before[2] + block[2]
                block = (before[0] + block[0], (before[1] * before[2] + block[1] * block[2]) / weight, weight)
            blocks.append(block)
        return {bucket: bucket * math.exp(mean) for members, mean, _ in blocks for bucket in members}

    @staticmethod
    def _check(size: int, seconds: float) -> None:
        if size < 1 or not 0 < seconds < math.inf:
            raise ValueError(f"not a measurement: {size} items in {seconds} s")
