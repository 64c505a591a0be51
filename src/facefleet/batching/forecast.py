"""What latency a bound and a delay would give the arrivals of the last seconds.

Owns the arithmetic only. No state, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from facefleet.batching.arrivals import Floats, backlog, local_rate, nearest_rank, sampled
from facefleet.batching.latency import LatencyCurve

_RATES = 16
"""Levels at which the size of batches is computed."""
_SAMPLES = 1024
"""Items of the window that are looked at."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What to expect of a policy.

    Attributes:
        max_batch: The bound.
        max_delay_s: The delay.
        p99_s: Seconds from arrival to answer that one item in a hundred exceeds.
        rate: Items a second when all batches are full: capacity.
        item_s: Device seconds an item, at the arrivals that were looked at.
        floor_s: Seconds that a full batch which just misses a device takes: below this p99 does not fall under load.
        risk_s: The p99 if the arrivals were denser; infinite where nothing is known of them.
    """

    max_batch: int
    max_delay_s: float
    p99_s: float
    rate: float
    item_s: float
    floor_s: float
    risk_s: float


class Forecaster:
    """Forecasts from a curve of service times.

    An item's latency is the queue before it, plus what is left of a running batch or the wait for company, plus its
    own batch. The queue is that of a fluid server at full capacity, replayed over the arrivals (`arrivals.backlog`);
    so bursts of any shape count as they came, with no distribution fitted to them: the idea of measured traffic
    envelopes (Qiu and Knightly, "Measurement-based admission control with aggregate traffic envelopes", IEEE/ACM
    Transactions on Networking 9(2), 2001). Below capacity, batches are as large as what comes during one of them, a
    fixed point ``b = rate * S(b) / devices`` of a server that takes all there is (Bailey, "On queueing processes with
    bulk service", J. Royal Statistical Society B 16, 1954, gives the process; this is its mean).

    Args:
        curve: Seconds a bucket; must be known.
        devices: How many serve.
    """

    def __init__(self, curve: LatencyCurve, devices: int) -> None:
        self._curve = curve
        self._devices = devices
        self._spread = curve.spread()
        self._sizes = np.asarray(curve.buckets)
        self._times = np.asarray([curve.seconds(bucket) for bucket in curve.buckets])

    def all(self, counts: Floats, bin_s: float, delays_s: Sequence[float], *, stress: float) -> list[Forecast]:
        """Every bucket as a bound with every delay; smaller bounds and shorter delays first.

        Args:
            counts: (n,) arrivals a bin; empty: nothing is known of them.
            bin_s: Width of a bin.
            delays_s: Delays.
            stress: Arrivals may be denser by this share, and by what chance may have hidden in their count.
        """
        items = sampled(counts, _SAMPLES)
        stress += 2 / math.sqrt(max(float(counts.sum()), 1.0))
        found: list[Forecast] = []
        for max_batch in self._curve.buckets:
            full_s = self._curve.seconds(max_batch)
            rate = self._devices * max_batch / full_s
            waits = backlog(counts, rate * bin_s)[items] / rate
            denser = backlog(counts, rate * bin_s / (1 + stress))[items] / rate
            local = local_rate(counts, round(full_s / bin_s), bin_s)[items]
            found += [
                self._one(max_batch, delay_s, waits, denser, local, rate)
                for delay_s in (delays_s if max_batch > 1 else delays_s[:1])
            ]
        return found

    def _one(
        self, max_batch: int, delay_s: float, waits: Floats, denser: Floats, local: Floats, rate: float
    ) -> Forecast:
        """One policy, for items that found these queues and came at these rates."""
        full_s = self._curve.seconds(max_batch) * self._spread
        floor_s = full_s * (1 + 1 / self._devices) if max_batch > 1 else full_s
        if not len(local):
            return Forecast(max_batch, delay_s, floor_s + delay_s, rate, float(self._times[0]), floor_s, math.inf)
        top = float(local.max())
        rates = np.linspace(top / _RATES, top, _RATES)
        sizes, seconds = self._batches(rates, max_batch, delay_s)
        busy = np.minimum(rates * seconds / (sizes * self._devices), 1.0)
        company = np.minimum(delay_s, (max_batch - 1) / rates)
        own = np.maximum(self._residual(busy) * seconds, company) + seconds * self._spread
        level = np.minimum((local * (_RATES / top)).astype(np.intp), _RATES - 1)
        p99_s = nearest_rank(waits + own[level], 0.99)
        item_s = float((seconds / sizes)[level].mean())
        risk_s = nearest_rank(denser + own[level], 0.99)
        least = floor_s if max_batch > 1 else 0.0
        return Forecast(max_batch, delay_s, max(p99_s, least), rate, item_s, floor_s, max(risk_s, least))

    def _batches(self, rates: Floats, max_batch: int, delay_s: float) -> tuple[Floats, Floats]:
        """Sizes of batches at each rate, and their seconds: from 1 up to the fixed point."""
        sizes = np.ones_like(rates)
        seconds = np.full_like(rates, self._times[0])
        for _ in range(12):
            grown = np.maximum(rates * seconds / self._devices, 1 + rates * delay_s)
            grown = np.minimum(grown, max_batch)
            if np.array_equal(grown, sizes):
                break
            sizes = grown
            seconds = self._times[np.minimum(np.searchsorted(self._sizes, sizes), len(self._sizes) - 1)]
        return sizes, seconds

    def _residual(self, busy: Floats) -> Floats:
        """What is left of the batch that ends first, in 99 of 100 arrivals, as a share of its seconds.

        All n devices are busy with probability ``busy**n``, each at a uniform place in its batch: the share x solves
        ``(busy * (1 - x))**n = 0.01``.
        """
        return np.asarray(np.maximum(1 - 0.01 ** (1 / self._devices) / np.maximum(busy, 1e-9), 0.0), dtype=np.float64)
