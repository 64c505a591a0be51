"""The search: few measurements, guided by a forecast that every measurement corrects.

Pure: the caller forecasts and measures. Throughput and p99 of a configuration are modeled as the forecast times a
factor for each of its levels: Bayesian linear regression on the logarithms of what the forecast was off by (Bishop,
"Pattern Recognition and Machine Learning", 2006, eq. 3.53 and 3.59). The next configuration is the one with the highest
expected improvement (Jones, Schonlau, Welch, "Efficient global optimization", 1998, eq. 15) times the probability that
it holds the target (Gardner et al., "Bayesian optimization with inequality constraints", 2014). The best of them are
measured again, half of them each time (successive halving: Jamieson, Talwalkar, 2016), so that luck does not win.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

_PRIOR_SD = 0.35
"""How far a level usually moves a forecast, in logarithms."""
_NOISE_SD = 0.06
_FAILED = np.array([-3.0, 3.0])
"""What a configuration that does not work counts as being off by."""
_EXPLORE = 0.01
_FINALISTS = 4
_NEAR = 1.08


class Candidate(Protocol):
    """What is searched among."""

    @property
    def key(self) -> str:
        """Names it."""

    @property
    def levels(self) -> dict[str, str]:
        """Factor -> level."""


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a configuration.

    Attributes:
        images_per_s: Throughput.
        p99_s: Latency.
    """

    images_per_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one.

    Attributes:
        images_per_s: Throughput.
        p50_s: Half are answered within it.
        p99_s: 99 of 100 are.
        memory_bytes: Peak; 0 where unknown.
        seconds: How long the measurement took.
        error: Why there is none; empty: there is one.
    """

    images_per_s: float
    p50_s: float
    p99_s: float
    memory_bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(slots=True)
class Tried(Generic[C]):
    """A configuration and its measurements."""

    choice: C
    shots: list[Measured] = field(default_factory=list)

    @property
    def images_per_s(self) -> float:
        """Median; 0 where a measurement failed."""
        return 0.0 if self.failed else statistics.median(shot.images_per_s for shot in self.shots)

    @property
    def p99_s(self) -> float:
        """Median; infinite where a measurement failed."""
        return math.inf if self.failed else statistics.median(shot.p99_s for shot in self.shots)

    @property
    def p50_s(self) -> float:
        """Median; infinite where a measurement failed."""
        return math.inf if self.failed else statistics.median(shot.p50_s for shot in self.shots)

    @property
    def memory_bytes(self) -> int:
        """Most of all measurements."""
        return max(shot.memory_bytes for shot in self.shots)

    @property
    def failed(self) -> str:
        """The first error; empty where there was none."""
        return next((shot.error for shot in self.shots if shot.error), "")

    def holds(self, target_s: float, memory_bytes: int) -> bool:
        """Whether it is within the target, and within the memory where that is limited."""
        fits = not memory_bytes or self.memory_bytes <= memory_bytes
        return not self.failed and self.p99_s <= target_s and fits


@dataclass(frozen=True, slots=True)
class Found(Generic[C]):
    """How a search ended.

    Attributes:
        best: The choice; None where nothing holds the target.
        tried: Everything that was measured, in that order.
        measurements: How many that were.
    """

    best: Tried[C] | None
    tried: list[Tried[C]]
    measurements: int


def search(
    choices: Sequence[C],
    forecast: Callable[[C], Forecast],
    measure: Callable[[C], Measured],
    *,
    target_s: float,
    budget: int,
    memory_bytes: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Found[C]:
    """Find the configuration with the highest throughput whose p99 is within the target.

    Args:
        choices: All of them.
        forecast: What is expected of one, before anything is measured.
        measure: Measures one.
        target_s: The p99 to hold.
        budget: Most measurements, repeated ones included; at least 8.
        memory_bytes: Most memory; 0: any.
        progress: Is told what happens next.

    Raises:
        ValueError: There is nothing to choose from, or too little to measure.
    """
    if not choices or budget < 8:
        raise ValueError(f"{len(choices)} configurations, {budget} measurements")
    model = _Model(choices, [forecast(choice) for choice in choices], target_s)
    tried: dict[int, Tried[C]] = {}
    spent = 0

    def take(index: int) -> None:
        nonlocal spent
        spent += 1
        progress(f"measurement {spent}/{budget}: {choices[index].key}")
        entry = tried.setdefault(index, Tried(choices[index]))
        entry.shots.append(measure(choices[index]))

    finalists_most = min(max(_FINALISTS, budget // 8), 2 * _FINALISTS)
    repeats = min(2 * finalists_most, budget // 3)
    for index in model.first(max(3, (budget - repeats) // 3)):
        take(index)
    while spent < budget - repeats and len(tried) < len(choices):
        model.learn(tried)
        best = max((each.images_per_s for each in tried.values() if each.holds(target_s, memory_bytes)), default=0.0)
        take(model.next(set(tried), best))
    finalists = _finalists(tried, target_s, memory_bytes, finalists_most)
    while finalists and spent < budget:
        for index in finalists[: budget - spent]:
            take(index)
        if len(finalists) == 1:
            break
        keep = max(1, len(finalists) // 2)
        finalists = _finalists({index: tried[index] for index in finalists}, target_s, memory_bytes, keep)
    held = [each for each in tried.values() if each.holds(target_s, memory_bytes)]
    settled = [each for each in held if len(each.shots) > 1] or held
    best_found = max(settled, key=lambda each: each.images_per_s, default=None)
    return Found(best_found, list(tried.values()), spent)


def _finalists(tried: dict[int, Tried[C]], target_s: float, memory_bytes: int, count: int) -> list[int]:
    """The fastest that hold the target, or miss it by no more than noise may have made them."""
    held = [index for index, each in tried.items() if each.holds(_NEAR * target_s, memory_bytes)]
    return sorted(held, key=lambda index: -tried[index].images_per_s)[:count]


def pareto(tried: Sequence[Tried[C]]) -> list[Tried[C]]:
    """Those that no other beats in both throughput and p99, fastest answers first."""
    front: list[Tried[C]] = []
    for each in sorted(tried, key=lambda each: (each.p99_s, -each.images_per_s)):
        if not each.failed and (not front or each.images_per_s > front[-1].images_per_s):
            front.append(each)
    return front


class _Model:
    """Forecasts, corrected by what was measured."""

    def __init__(self, choices: Sequence[Candidate], forecasts: Sequence[Forecast], target_s: float) -> None:
        self._target = math.log(target_s)
        self._prior = np.log([[each.images_per_s, each.p99_s] for each in forecasts])
        levels = [choice.levels for choice in choices]
        self._names = sorted({item for each in levels for item in each.items()})
        place = {name: column for column, name in enumerate(self._names)}
        self._features = np.zeros((len(choices), len(self._names) + 1))
        self._features[:, -1] = 1.0  # what all forecasts are off by
        for row, each in enumerate(levels):
            for item in each.items():
                self._features[row, place[item]] = 1.0
        width = self._features.shape[1]
        self._mean = np.zeros((width, 2))
        self._covariance = np.eye(width) * _PRIOR_SD**2

    def first(self, count: int) -> list[int]:
        """Where to begin: the best by forecast, then those that show the most levels not seen yet."""
        rate, p99 = self._prior[:, 0], self._prior[:, 1]
        score = rate - 4 * np.maximum(p99 - self._target, 0.0)
        chosen = [int(np.argmax(score))]
        while len(chosen) < min(count, len(score)):
            seen = self._features[chosen].max(axis=0)
            news = (self._features * (1 - seen)).sum(axis=1)
            value = score + 0.5 * news
            value[chosen] = -np.inf
            chosen.append(int(np.argmax(value)))
        return chosen

    def learn(self, tried: dict[int, Tried[C]]) -> None:
        """Take in all measurements; failed ones count as far off."""
        rows, targets = [], []
        for index, each in tried.items():
            measured = np.log([each.images_per_s, each.p99_s]) if not each.failed else self._prior[index] + _FAILED
            rows.append(self._features[index])
            targets.append(measured - self._prior[index])
        design, off_by = np.array(rows), np.array(targets)
        width = design.shape[1]
        precision = np.eye(width) / _PRIOR_SD**2 + design.T @ design / _NOISE_SD**2
        self._covariance = np.linalg.inv(precision)
        self._mean = self._covariance @ design.T @ off_by / _NOISE_SD**2

    def next(self, seen: set[int], best: float) -> int:
        """The configuration that is most worth measuring."""
        expected = self._prior + self._features @ self._mean
        spread = np.sqrt(np.einsum("ij,jk,ik->i", self._features, self._covariance, self._features) + _NOISE_SD**2)
        holds = _normal_cdf((self._target - expected[:, 1]) / spread)
        if best > 0:
            gain = expected[:, 0] - math.log(best) - _EXPLORE
            ratio = gain / spread
            improvement = gain * _normal_cdf(ratio) + spread * np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
            value = np.maximum(improvement, 1e-12) * holds
        else:
            value = holds * np.exp(0.25 * (expected[:, 0] - expected[:, 0].max()))
        value[list(seen)] = -np.inf
        return int(np.argmax(value))


def _normal_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in values])
