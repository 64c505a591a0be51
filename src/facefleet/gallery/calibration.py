"""Thresholds for a wanted false acceptance rate, and scores as probabilities.

Owns the statistics of genuine and impostor scores. Refuses to extrapolate: a rate that the number of impostor pairs
cannot show is said to be unknown.

Source: Platt, "Probabilistic outputs for support vector machines", 1999, with the targets and the Newton method of
Lin, Lin, Weng, "A note on Platt's probabilistic outputs for support vector machines", Machine Learning 68, 2007.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import GalleryError
from facefleet.types import F32Array

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
_BLOCK = 2048
_BINS = 2000
_LEAST_GENUINE = 20


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """One line of the table.

    Attributes:
        far: False acceptance rate wanted: the share of pairs of different people at or above the threshold.
        threshold: Least cosine that keeps it; None where there are too few pairs to tell.
        tar: Share of pairs of the same person accepted there; None without such pairs.
        accepted: Pairs of different people at or above it.
    """

    far: float
    threshold: float | None
    tar: float | None
    accepted: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found.

    Attributes:
        slope: P(same | cosine c) = 1 / (1 + exp(-(slope * c + intercept))), both cases equally likely beforehand.
        intercept: See `slope`; both None without enough pairs of the same person.
        impostors: Pairs of different people.
        genuine: Pairs of the same person.
        rows: Thresholds.
        histogram: Pairs per cosine bin from -1 to 1: impostors, genuine; for the plot.
    """

    slope: float | None
    intercept: float | None
    impostors: int
    genuine: int
    rows: tuple[ThresholdRow, ...]
    histogram: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def probability(self, score: float) -> float | None:
        """That a pair with this cosine is the same person; None without enough pairs of the same person."""
        if self.slope is None or self.intercept is None:
            return None
        return float(1 / (1 + np.exp(-(self.slope * score + self.intercept))))

    def to_json(self) -> str:
        """All of it but the histogram, as JSON."""
        return json.dumps({key: value for key, value in asdict(self).items() if key != "histogram"})

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """The other way."""
        values = json.loads(text)
        values["rows"] = tuple(ThresholdRow(**row) for row in values["rows"])
        return cls(**values)


def calibrate(
    vectors: F32Array, people: NDArray[np.int64], *, fars: Sequence[float] = FARS, most_pairs: int = 200_000_000
) -> Calibration:
    """Compare all samples with all others.

    Args:
        vectors: (n, d) float32 of length one.
        people: (n,) whose each is.
        fars: Rates wanted.
        most_pairs: About how many pairs are looked at; more samples are thinned out at random, the same each time.

    Raises:
        GalleryError: There are no two people to compare.
    """
    if len(np.unique(people)) < 2:
        raise GalleryError("calibration needs samples of at least two people", hint="enrol more people")
    limit = int(np.sqrt(2 * most_pairs))
    if len(vectors) > limit:
        rows = np.sort(np.random.default_rng(0).permutation(len(vectors))[:limit])
        vectors, people = vectors[rows], people[rows]
    genuine: list[F32Array] = []
    edges = np.linspace(-1, 1, _BINS + 1)
    counts = np.zeros(_BINS, np.int64)
    total = 0
    tail: F32Array = np.empty(0, np.float32)
    keep = 0
    for start in range(0, len(vectors), _BLOCK):
        scores = np.clip(vectors[start : start + _BLOCK] @ vectors[start:].T, -1, 1)
        upper = np.triu(np.ones(scores.shape, np.bool_), 1)
        same = people[start : start + _BLOCK, None] == people[None, start:]
        genuine.append(scores[upper & same])
        impostor = scores[upper & ~same]
        total += len(impostor)
        counts += np.histogram(impostor, edges)[0]
        keep = int(max(fars) * (len(vectors) ** 2) / 2) + 1
        tail = np.concatenate([tail, impostor])
        if len(tail) > keep:
            tail = np.partition(tail, len(tail) - keep)[-keep:]
    mine = np.concatenate(genuine)
    return from_scores(mine, tail, total, fars=fars, counts=counts)


def from_scores(
    genuine: NDArray[np.floating],
    impostor_tail: NDArray[np.floating],
    impostors: int,
    *,
    fars: Sequence[float] = FARS,
    counts: NDArray[np.int64] | None = None,
) -> Calibration:
    """Thresholds and probabilities from scores.

    Args:
        genuine: (g,) cosines of pairs of the same person.
        impostor_tail: The highest cosines of pairs of different people, enough for the largest rate; or all.
        impostors: How many such pairs there are in all.
        fars: Rates wanted.
        counts: Histogram of all impostor scores; default: of the tail, which then are all.
    """
    edges = np.linspace(-1, 1, _BINS + 1)
    if counts is None:
        counts = np.histogram(impostor_tail, edges)[0]
    mine = np.histogram(genuine, edges)[0]
    ordered = np.sort(np.asarray(impostor_tail, np.float64))[::-1]
    rows = []
    for far in fars:
        allowed = int(far * impostors)
        if allowed < 1 or allowed >= len(ordered) + (len(ordered) < impostors):
            rows.append(ThresholdRow(far, None, None, 0))
            continue
        threshold = float(np.nextafter(ordered[allowed], 2.0)) if allowed < len(ordered) else float(ordered[-1])
        tar = float((genuine >= threshold).mean()) if len(genuine) else None
        rows.append(ThresholdRow(far, threshold, tar, int((ordered >= threshold).sum())))
    slope = intercept = None
    if len(genuine) >= _LEAST_GENUINE and impostors >= _LEAST_GENUINE:
        slope, intercept = _platt((edges[:-1] + edges[1:]) / 2, mine, counts)
    return Calibration(
        slope, intercept, impostors, len(genuine), tuple(rows), (tuple(counts.tolist()), tuple(mine.tolist()))
    )


def _platt(
    centers: NDArray[np.float64], genuine: NDArray[np.int64], impostor: NDArray[np.int64]
) -> tuple[float, float]:
    """Slope and intercept of a logistic regression on binned scores, both classes weighing the same."""
    good, bad = genuine.sum(), impostor.sum()
    high, low = (good + 1) / (good + 2), 1 / (bad + 2)
    scale = (good + bad) / 2
    weights = np.concatenate([genuine / good, impostor / bad]) * scale
    targets = np.concatenate([np.full(len(centers), high), np.full(len(centers), low)])
    x = np.stack([np.concatenate([centers, centers]), np.ones(2 * len(centers))], axis=1)

    def loss(parameters: NDArray[np.float64]) -> float:
        z = x @ parameters
        return float((weights * (np.logaddexp(0, z) - targets * z)).sum())

    parameters = np.array([10.0, -4.0])
    best = loss(parameters)
    for _ in range(100):
        p = 1 / (1 + np.exp(-(x @ parameters)))
        gradient = x.T @ (weights * (p - targets))
        hessian = (x * (weights * p * (1 - p))[:, None]).T @ x + 1e-9 * scale * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-8 and loss(parameters - size * step) > best:
            size /= 2
        parameters = parameters - size * step
        after = loss(parameters)
        if best - after < 1e-10 * abs(best):
            break
        best = after
    return float(parameters[0]), float(parameters[1])


def plot_calibration(calibration: Calibration, path: Path) -> Path | None:
    """Draw both distributions, the thresholds and the probability.

    Args:
        calibration: With its histogram.
        path: PNG to write.

    Returns:
        `path`, or None where matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(-1, 1, _BINS // 10 + 1)
    for counts, label, color in zip(
        calibration.histogram, ("different people", "same person"), ("tab:red", "tab:green"), strict=True
    ):
        bins = np.array(counts, np.float64).reshape(-1, 10).sum(axis=1)
        if bins.sum():
            axes.stairs(bins / bins.sum(), edges, fill=True, alpha=0.45, color=color, label=f"{label}: {sum(counts):,}")
    for row in calibration.rows:
        if row.threshold is not None:
            axes.axvline(row.threshold, color="black", linewidth=0.7, linestyle=":")
            axes.text(
                row.threshold,
                0.99,
                f" {row.far:g}",
                rotation=90,
                va="top",
                fontsize=7,
                transform=axes.get_xaxis_transform(),
            )
    axes.set_xlabel("cosine (dotted: thresholds, with their false acceptance rates)")
    axes.set_ylabel("share of pairs per bin of 0.01")
    axes.set_xlim(-0.5, 1)
    if calibration.slope is not None:
        right = axes.twinx()
        x = np.linspace(-0.5, 1, 301)
        right.plot(x, [calibration.probability(value) or 0.0 for value in x], color="tab:blue", label="probability")
        right.set_ylabel("probability of the same person, equal odds beforehand", color="tab:blue")
        right.set_ylim(0, 1.02)
    axes.legend(loc="center left")
    figure.savefig(path, dpi=120)
    return path
