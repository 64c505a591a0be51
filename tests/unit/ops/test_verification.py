"""Verification figures against numbers worked out another way."""

from __future__ import annotations

import numpy as np
import pytest

from facefleet.ops.verification import best_threshold, verification


def test_against_plain_loops() -> None:
    random = np.random.default_rng(0)
    same = random.integers(0, 2, 2000).astype(bool)
    scores = np.where(same, random.normal(0.6, 0.15, 2000), random.normal(0.1, 0.12, 2000))
    fold = np.arange(2000) % 10
    result = verification(scores, same, fold, far=0.01)
    accuracies = []
    for number in range(10):
        rest = fold != number
        tried = [((scores[rest] >= t) == same[rest]).mean() for t in np.sort(scores)]
        threshold = np.sort(scores)[int(np.argmax(tried))]
        accuracies.append(((scores[~rest] >= threshold) == same[~rest]).mean())
    assert result.accuracy == pytest.approx(np.mean(accuracies), abs=0.002)
    limit = np.sort(scores[~same])[::-1][int(0.01 * (~same).sum())]
    assert result.tar == pytest.approx((scores[same] > limit).mean())
    assert (scores[~same] > limit).mean() <= 0.01
    wins = (scores[same][:, None] > scores[~same][None]).mean()
    assert result.auc == pytest.approx(wins, abs=1e-6)


def test_threshold_separates() -> None:
    assert best_threshold(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True])) == pytest.approx(0.5)
    assert best_threshold(np.array([0.1, 0.2]), np.array([True, True])) < 0.1


def test_the_strictest_of_equally_good_thresholds() -> None:
    """Between 0 and 0.1 the different pair at 0.2 is taken for same, above 0.2 the same pair at 0.1 is lost."""
    scores = np.array([0.0, 0.1, 0.2, 0.3, 0.9])
    same = np.array([False, True, False, True, True])
    assert best_threshold(scores, same) == pytest.approx(0.25)
    order = np.array([3, 0, 4, 2, 1])
    assert best_threshold(scores[order], same[order]) == pytest.approx(0.25)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_equal_scores_are_never_parted(kind: type) -> None:
    """Different and same pairs of one score: a threshold takes all of them or none."""
    scores = np.array([0.1, 0.5, 0.5, 0.5, 0.9], kind)
    for same in ([False, False, True, False, True], [False, True, True, False, True]):
        truth = np.array(same)
        threshold = best_threshold(scores, truth)
        right = ((scores >= threshold) == truth).sum()
        assert right == max(((scores >= t) == truth).sum() for t in (0.0, 0.3, 0.7, 1.0))


def test_every_pair_different() -> None:
    assert best_threshold(np.array([0.1, 0.9]), np.array([False, False])) > 0.9
