"""Figures of repeated measurements: percentiles of single runs, medians and spreads of rounds, ties.

Pure functions of numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

QUANTILES = (50.0, 90.0, 95.0, 99.0)
# Expected range of n normal values in standard deviations (d2 of control charts, Shewhart 1931), n = 2 to 10.
_RANGE_SIGMAS = (1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078)
_MEDIAN = 1.2533  # standard error of a median, in those of a mean
_SURE = 3.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles, in seconds.

    Attributes:
        count: Runs.
        mean: Of all.
        p50: Half are no slower.
        p90: Nine of ten are no slower.
        p95: 95 of 100 are no slower.
        p99: 99 of 100 are no slower.
        max: The slowest.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    def as_json(self) -> dict[str, float]:
        """In milliseconds."""
        names = ("mean", "p50", "p90", "p95", "p99", "max")
        return {"count": self.count} | {f"{name}_ms": round(1000 * getattr(self, name), 4) for name in names}


def latencies(seconds: Sequence[float]) -> Latencies:
    """Percentiles of some runs: the smallest value that at least that share does not exceed.

    Raises:
        ValueError: There are none.
    """
    if not seconds:
        raise ValueError("no latencies")
    ordered = sorted(seconds)
    p50, p90, p95, p99 = (quantile(ordered, percent) for percent in QUANTILES)
    return Latencies(len(ordered), statistics.fmean(ordered), p50, p90, p95, p99, ordered[-1])


def quantile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return ordered[max(math.ceil(percent * len(ordered) / 100 - 1e-9), 1) - 1]


def distribution(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """(milliseconds, share that is no slower) of sorted seconds: every fiftieth, and finer at the slow end."""
    shares = [*range(2, 99, 2), 99, 99.5, 99.9, 100]
    return [(round(1000 * quantile(ordered, share), 4), round(share / 100, 4)) for share in shares]


@dataclass(frozen=True, slots=True)
class Repeated:
    """One figure, measured in several rounds.

    Attributes:
        values: A round each.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Between the least and the largest."""
        return max(self.values) - min(self.values)

    @property
    def sigma(self) -> float:
        """Standard error of the median, from the spread; infinite with one round."""
        count = len(self.values)
        if count < 2:
            return math.inf
        if count > len(_RANGE_SIGMAS) + 1:
            return _MEDIAN * statistics.stdev(self.values) / math.sqrt(count)
        return _MEDIAN * self.spread / _RANGE_SIGMAS[count - 2] / math.sqrt(count)

    def ties(self, other: Repeated) -> bool:
        """Whether two figures are closer than the spread of either."""
        return abs(self.median - other.median) <= max(self.spread, other.spread)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        rounds = [round(value, 4) for value in self.values]
        return {"median": round(self.median, 4), "spread": round(self.spread, 4), "rounds": rounds}


def tied_with_best(figures: Mapping[str, Repeated]) -> set[str]:
    """Names whose figure is the highest, or ties with it."""
    if not figures:
        return set()
    best = max(figures.values(), key=lambda figure: figure.median)
    return {name for name, figure in figures.items() if figure.ties(best)}


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in two measurements.

    Attributes:
        ratio: The second over the first.
        noise: Changes smaller than this share mean nothing.
        verdict: ``faster``, ``slower`` or ``no difference``; ``unknown`` where there was one round only.
    """

    ratio: float
    noise: float
    verdict: str


def compared(before: Repeated, after: Repeated, *, floor: float = 0.02, higher_is_better: bool = True) -> Change:
    """What changed between two measurements of a figure, as far as noise lets one say.

    Args:
        before: First measurement.
        after: Second one.
        floor: Changes below this share are never called one: two runs of the same thing differ by more than their
            rounds do, since a machine's state changes between them.
        higher_is_better: Whether a rise is good.
    """
    ratio = after.median / before.median
    sigma = math.hypot(before.sigma / before.median, after.sigma / after.median)
    if math.isinf(sigma):
        return Change(ratio, math.inf, "unknown")
    noise = max(_SURE * sigma, floor)
    if abs(ratio - 1) <= noise:
        return Change(ratio, noise, "no difference")
    return Change(ratio, noise, "faster" if (ratio > 1) is higher_is_better else "slower")
