"""Verification figures from pairs of embeddings: ten-fold accuracy, TAR at a FAR, area under the curve.

Source: Huang, Ramesh, Berg, Learned-Miller, "Labeled faces in the wild", UMass TR 07-49, 2007, View 2: the threshold
of each fold is the best on the other nine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Verification:
    """Figures of a set of pairs.

    Attributes:
        accuracy: Mean over folds, 0..1.
        deviation: Standard deviation over folds.
        threshold: Mean of the folds' thresholds, cosine.
        tar: Share of same pairs accepted at the threshold where `far` of the different ones are.
        far: That share.
        auc: Area under the curve of true against false acceptances.
    """

    accuracy: float
    deviation: float
    threshold: float
    tar: float
    far: float
    auc: float


def verification(
    scores: NDArray[np.floating], same: NDArray[np.bool_], fold: NDArray[np.integer], *, far: float = 1e-3
) -> Verification:
    """Evaluate pairs.

    Args:
        scores: (n,) cosine similarities.
        same: (n,) whether both are the same person.
        fold: (n,) the fold of each pair.
        far: False acceptance rate for `tar`.
    """
    accuracies, thresholds = [], []
    for number in np.unique(fold):
        test = fold == number
        threshold = best_threshold(scores[~test], same[~test])
        thresholds.append(threshold)
        accuracies.append(float(((scores[test] >= threshold) == same[test]).mean()))
    negatives = np.sort(scores[~same])[::-1]
    limit = negatives[int(far * len(negatives))]
    ranks = np.concatenate([scores[same], scores[~same]]).argsort(kind="stable").argsort() + 1
    positives = int(same.sum())
    auc = (ranks[:positives].sum() - positives * (positives + 1) / 2) / (positives * len(negatives))
    return Verification(
        float(np.mean(accuracies)),
        float(np.std(accuracies)),
        float(np.mean(thresholds)),
        float((scores[same] > limit).mean()),
        far,
        float(auc),
    )


def best_threshold(scores: NDArray[np.floating], same: NDArray[np.bool_]) -> float:
    """The threshold (accept at and above) with the most right decisions.

    Among thresholds with equally many the strictest counts, the highest: of two errors that cost the same here, taking
    strangers for one person is the graver one. Whoever tries distances from the smallest on and keeps the first best,
    as is usual, takes the same one.

    Args:
        scores: (n,) cosine similarities, n >= 1.
        same: (n,) whether both are the same person.

    Returns:
        Midway between two neighboring scores, or beyond all of them where that is best.
    """
    order = np.argsort(scores, kind="stable")
    ordered, truth = scores[order].astype(np.float64), same[order]
    # Accepting from position i on: same pairs from i on and different ones before i are right.
    right = np.concatenate([[0], np.cumsum(~truth)]) + np.concatenate([np.cumsum(truth[::-1])[::-1], [0]])
    right[1:-1][ordered[1:] == ordered[:-1]] = -1  # no threshold parts equal scores
    best = len(ordered) - int(np.argmax(right[::-1]))
    low = ordered[best - 1] if best > 0 else ordered[0] - 1
    high = ordered[best] if best < len(ordered) else ordered[-1] + 1
    return float((low + high) / 2)
