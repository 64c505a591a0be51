"""What the stages hand on: detections, aligned chips, embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from facefleet.types.arrays import BoolArray, F32Array, U8Array, expect


@dataclass(frozen=True, slots=True)
class Detections:
    """The faces a detector found in one picture.

    Attributes:
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels of the frame; may reach past its border; x2 > x1, y2 > y1.
        landmarks: (n, 5, 2) float32, x y of left eye, right eye, nose, left and right mouth corner as seen in the
            picture; None for a detector without landmarks.
        scores: (n,) float32 in [0, 1].
        width: Width in pixels of the frame that the coordinates refer to.
        height: Height in pixels.
        best_rejected: The highest score below the threshold, for finding out why nothing was found; 0.0 if none.
    """

    boxes: F32Array
    landmarks: F32Array | None
    scores: F32Array
    width: int
    height: int
    best_rejected: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.scores)
        expect("Detections.boxes", self.boxes, (n, 4), np.float32)
        expect("Detections.scores", self.scores, (n,), np.float32)
        if self.landmarks is not None:
            expect("Detections.landmarks", self.landmarks, (n, 5, 2), np.float32)

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, index: NDArray[np.intp]) -> Detections:
        """The detections at `index`, in that order."""
        return Detections(
            self.boxes[index],
            None if self.landmarks is None else self.landmarks[index],
            self.scores[index],
            self.width,
            self.height,
            self.best_rejected,
        )


@dataclass(frozen=True, slots=True)
class FaceChips:
    """Aligned faces, ready to embed.

    Attributes:
        pixels: (n, h, w, 3) uint8 RGB; usually 112 x 112. A row whose `aligned` is False is black.
        transforms: (n, 2, 3) float32, original frame -> chip; NaN where `aligned` is False.
        aligned: (n,) bool: whether the landmarks gave a usable transform.
    """

    pixels: U8Array = field(repr=False)
    transforms: F32Array
    aligned: BoolArray

    def __post_init__(self) -> None:
        n = len(self.aligned)
        expect("FaceChips.pixels", self.pixels, (n, None, None, 3), np.uint8)
        expect("FaceChips.transforms", self.transforms, (n, 2, 3), np.float32)
        expect("FaceChips.aligned", self.aligned, (n,), np.bool_)

    def __len__(self) -> int:
        return len(self.aligned)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Face embeddings.

    Attributes:
        vectors: (n, d) float32, L2-normalised.
        norms: (n,) float32, the norm before normalisation.
    """

    vectors: F32Array
    norms: F32Array

    def __post_init__(self) -> None:
        n = len(self.norms)
        expect("Embeddings.vectors", self.vectors, (n, None), np.float32)
        expect("Embeddings.norms", self.norms, (n,), np.float32)

    def __len__(self) -> int:
        return len(self.norms)
