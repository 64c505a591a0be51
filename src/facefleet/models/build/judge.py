"""How far the answers of a lower precision are from those of fp32, and how far they may be.

Owns the guards and what is compared: vectors of an embedder, faces of a detector. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import ConfigError
from facefleet.ops.nms import overlaps
from facefleet.ops.vector import l2_normalize
from facefleet.ops.verification import verification
from facefleet.types import Detections, F32Array


@dataclass(frozen=True, slots=True)
class Verdict:
    """A comparison.

    Attributes:
        loss: How far the answer is; 0 is the same. For ranking.
        figures: What the guard looked at, by name.
        holds: Whether the guard holds.
    """

    loss: float
    figures: Mapping[str, float]
    holds: bool


class Judge(Protocol):
    """Compares the answers of one network."""

    def compare(self, reference: Any, answer: Any) -> Verdict:  # noqa: ANN401  # its own kind of answer
        """Hold `answer` against that of fp32."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What a lower precision must hold against float32.

    Attributes:
        cosine_mean: Least mean cosine of embeddings.
        cosine_min: Least cosine.
        accuracy_loss: Most loss of verification accuracy, in points of a hundred, where pairs are given.
        tar_loss: Most loss of TAR at FAR 1e-3 in points, where pairs are given.
        iou_min: Of a detector: least overlap of a face's box.
        landmark_max: Of a detector: most that a landmark may move, relative to the shorter side of its face's box.
        score_max: Of a detector: most that a score may move.
    """

    cosine_mean: float = 0.999
    cosine_min: float = 0.99
    accuracy_loss: float = 0.1
    tar_loss: float = 1.0
    iou_min: float = 0.97
    landmark_max: float = 0.03
    score_max: float = 0.03


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of the pictures, for accuracy.

    Attributes:
        first: (n,) row of the one picture.
        second: (n,) row of the other.
        same: (n,) whether both show one person.
        fold: (n,) fold of each pair.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    same: NDArray[np.bool_]
    fold: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class EmbedderJudge:
    """Compares (n, d) vectors.

    Attributes:
        guard: What must hold.
        pairs: Pairs of the pictures, for losses of accuracy; None: cosines alone.

    Raises:
        ConfigError: Too few pairs for the loss that the guard allows: one pair would decide.
    """

    guard: Guard = field(default_factory=Guard)
    pairs: Pairs | None = None

    def __post_init__(self) -> None:
        allowed = self.guard.accuracy_loss
        if self.pairs is not None and len(self.pairs.same) * allowed < 100:
            raise ConfigError(
                f"a loss of {allowed} points cannot be seen in {len(self.pairs.same)} pairs",
                hint=f"give at least {int(100 / max(allowed, 1e-6))} pairs, or a wider guard",
            )

    def compare(self, reference: F32Array, answer: F32Array) -> Verdict:
        """As `Judge.compare`; the loss is that of the mean cosine."""
        first, second = l2_normalize(reference)[0], l2_normalize(answer)[0]
        cosine = np.einsum("nd,nd->n", first, second)
        figures = {"cosine_mean": float(cosine.mean()), "cosine_min": float(cosine.min())}
        guard = self.guard
        holds = figures["cosine_mean"] >= guard.cosine_mean and figures["cosine_min"] >= guard.cosine_min
        if self.pairs is not None:
            accuracy, tar = self._losses(first, second, self.pairs)
            figures |= {"accuracy_loss": accuracy, "tar_loss": tar}
            holds = holds and accuracy <= guard.accuracy_loss and tar <= guard.tar_loss
        return Verdict(1 - float(cosine.mean()), figures, holds)

    @staticmethod
    def _losses(reference: F32Array, answer: F32Array, pairs: Pairs) -> tuple[float, float]:
        """Accuracy and TAR lost, in points."""
        figures = []
        for vectors in (reference, answer):
            scores = np.einsum("nd,nd->n", vectors[pairs.first], vectors[pairs.second])
            figures.append(verification(scores, pairs.same, pairs.fold))
        return 100 * (figures[0].accuracy - figures[1].accuracy), 100 * (figures[0].tar - figures[1].tar)


@dataclass(frozen=True, slots=True)
class DetectorJudge:
    """Compares the faces of pictures.

    Attributes:
        guard: What must hold.
    """

    guard: Guard = field(default_factory=Guard)

    def compare(self, reference: Sequence[Detections], answer: Sequence[Detections]) -> Verdict:
        """As `Judge.compare`; the loss is how far boxes, landmarks and scores are on average, and 1 for a lost face."""
        errors: list[tuple[float, float, float]] = []
        lost = 0
        for first, second in zip(reference, answer, strict=True):
            rows, columns = _matched(first, second)
            lost += len(first) + len(second) - 2 * len(rows)
            errors += [_errors(first, row, second, column) for row, column in zip(rows, columns, strict=True)]
        overlap, landmark, score = np.array(errors, np.float64).reshape(-1, 3).T
        figures = {
            "faces": float(sum(map(len, reference))),
            "lost": float(lost),
            "iou_min": float(overlap.min(initial=1)),
            "landmark_max": float(landmark.max(initial=0)),
            "score_max": float(score.max(initial=0)),
        }
        guard = self.guard
        holds = (
            not lost
            and figures["iou_min"] >= guard.iou_min
            and figures["landmark_max"] <= guard.landmark_max
            and figures["score_max"] <= guard.score_max
        )
        matched = max(len(errors), 1)
        loss = float((1 - overlap).sum() + landmark.sum() + score.sum() + lost) / (matched + lost)
        return Verdict(loss, figures, holds)


def _errors(first: Detections, row: int, second: Detections, column: int) -> tuple[float, float, float]:
    """Overlap, landmark error relative to the face, and difference of scores."""
    a, b = first.boxes[row], second.boxes[column]
    landmark = 0.0
    if first.landmarks is not None and second.landmarks is not None:
        side = max(float(min(a[2] - a[0], a[3] - a[1])), 1.0)
        landmark = float(np.abs(first.landmarks[row] - second.landmarks[column]).max()) / side
    score = abs(float(first.scores[row]) - float(second.scores[column]))
    return float(overlaps(a[None], b[None])[0, 0]), landmark, score


def _matched(first: Detections, second: Detections) -> tuple[list[int], list[int]]:
    """Faces of both that overlap by half and more, the best overlap first."""
    overlap = overlaps(first.boxes, second.boxes)
    rows: list[int] = []
    columns: list[int] = []
    while overlap.size and overlap.max() >= 0.5:
        row, column = (int(each) for each in np.unravel_index(overlap.argmax(), overlap.shape))
        rows.append(row)
        columns.append(column)
        overlap[row], overlap[:, column] = -1, -1
    return rows, columns
