"""What every detector head offers: outputs of one batch in, candidate faces of each picture out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import GraphError
from facefleet.types import F32Array


@dataclass(frozen=True, slots=True)
class Candidates:
    """Faces above the threshold in one detector input, before suppression.

    Attributes:
        boxes: (n, 4) float32 x1 y1 x2 y2 in pixels of the detector input.
        landmarks: (n, 5, 2) float32, or None for a network without landmarks.
        scores: (n,) float32.
        best_rejected: The highest score not above the threshold; 0.0 if none.
    """

    boxes: F32Array
    landmarks: F32Array | None
    scores: F32Array
    best_rejected: float


class DetectorHead(ABC):
    """Reads the outputs of one detector family.

    Args:
        outputs: Output names and last dimensions of the network, in its order.

    Raises:
        GraphError: They are not those of this family.
    """

    @abstractmethod
    def __init__(self, outputs: Sequence[tuple[str, int]]) -> None: ...

    surer = 0.12
    """How much above `detect.recheck` the score of a large face has to be where the network is not in fp32."""

    tie = 0.002
    """Scores of two anchors of one face nearer than this may have changed places by rounding; 0: never mind."""

    @property
    def passed_on(self) -> frozenset[str]:
        """Names of outputs that need not be held against infinity, since others are computed from them."""
        return frozenset()

    @abstractmethod
    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """The candidates of one picture of a batch.

        Args:
            outputs: What the network returned, each (n, cells, c).
            row: Which picture of the batch.
            width: Width of the detector input in pixels.
            height: Its height.
            threshold: Candidates with scores above this are returned.
        """


@lru_cache(maxsize=256)
def grid(width: int, height: int, stride: int, anchors: int) -> F32Array:
    """(rows * columns * anchors, 2) float32: x, y of each cell's corner in pixels, row by row. Read only."""
    columns, rows = -(-width // stride), -(-height // stride)
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    cells = np.stack([x, y], axis=-1).reshape(-1, 2).repeat(anchors, axis=0)
    points = (cells * stride).astype(np.float32)
    points.flags.writeable = False
    return points


def by_width(outputs: Sequence[tuple[str, int]], width: int) -> list[int]:
    """Positions of the outputs whose last dimension is `width`, in order."""
    return [i for i, (_, last) in enumerate(outputs) if last == width]


def above(scores: F32Array, threshold: float) -> tuple[NDArray[np.intp], float]:
    """Indices of the scores above `threshold`, and the best of the others (0.0 if there is none)."""
    keep = np.flatnonzero(scores > threshold)
    if len(keep) == 0:
        return keep, float(scores.max(initial=0.0))
    if len(keep) == len(scores):
        return keep, 0.0
    return keep, float(scores[scores <= threshold].max(initial=0.0))


def merge(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several strides or inputs as one."""
    landmarks = [part.landmarks for part in parts]
    return Candidates(
        np.concatenate([part.boxes for part in parts]),
        None if any(points is None for points in landmarks) else np.concatenate(landmarks),  # type: ignore[arg-type]
        np.concatenate([part.scores for part in parts]),
        max(part.best_rejected for part in parts),
    )


def unexpected(family: str, outputs: Sequence[tuple[str, int]], wanted: str) -> GraphError:
    """The error for outputs that are not of this family."""
    got = ", ".join(f"{name}[..., {last}]" for name, last in outputs)
    return GraphError(f"not a {family} network: expected {wanted}, got {got}", hint="check `family` in the manifest")
