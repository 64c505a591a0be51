"""The result for one picture: every face in it, and a view of a single one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from facefleet.types.arrays import F32Array, expect


class FaceStatus(IntEnum):
    """What became of one face."""

    OK = 0
    ALIGNMENT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Quality:
    """Measures of how usable each face is; all (n,) float32.

    Attributes:
        size_px: Shorter side of the box in pixels of the original.
        blur: Variance of the Laplacian of the aligned grey chip; low is blurred. NaN where not aligned.
        yaw_deg: Turn to the side from the landmarks, degrees, positive towards the right of the picture.
        pitch_deg: Nod from the landmarks, degrees, positive downwards.
        roll_deg: Tilt of the line between the eyes, degrees, positive clockwise as seen in the picture.
    """

    size_px: F32Array
    blur: F32Array
    yaw_deg: F32Array
    pitch_deg: F32Array
    roll_deg: F32Array


@dataclass(frozen=True, slots=True)
class Faces:
    """Every face of one picture, in the order asked for.

    Attributes:
        name: The picture.
        width: Width in pixels of the upright picture, the frame of boxes and landmarks.
        height: Height in pixels.
        boxes: (n, 4) float32 x1 y1 x2 y2, not clamped.
        landmarks: (n, 5, 2) float32; NaN for a detector without landmarks.
        scores: (n,) float32 in [0, 1].
        embeddings: (n, d) float32, L2-normalised; NaN rows where `status` is not OK.
        norms: (n,) float32, norm before normalisation; NaN likewise.
        status: (n,) uint8 of `FaceStatus`.
        quality: Per-face measures.
        best_rejected: Highest detector score below the threshold.
        chips: (n, h, w, 3) uint8 RGB aligned faces, when they were asked for.
    """

    name: str
    width: int
    height: int
    boxes: F32Array
    landmarks: F32Array
    scores: F32Array
    embeddings: F32Array
    norms: F32Array
    status: NDArray[np.uint8]
    quality: Quality
    best_rejected: float = 0.0
    chips: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        n = len(self.scores)
        expect("Faces.boxes", self.boxes, (n, 4), np.float32)
        expect("Faces.landmarks", self.landmarks, (n, 5, 2), np.float32)
        expect("Faces.embeddings", self.embeddings, (n, None), np.float32)
        expect("Faces.norms", self.norms, (n,), np.float32)
        expect("Faces.status", self.status, (n,), np.uint8)

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[FaceRecord]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> FaceRecord:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"face {index} of {n}")
        return FaceRecord(self, index % n)

    @property
    def boxes_int(self) -> NDArray[np.int32]:
        """(n, 4) int32: the boxes rounded outwards and clamped to the frame, for cropping and drawing."""
        low = np.floor(self.boxes[:, :2])
        high = np.ceil(self.boxes[:, 2:])
        limit = np.array([self.width, self.height], np.float32)
        return np.concatenate([np.clip(low, 0, limit), np.clip(high, 0, limit)], axis=1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class FaceRecord:
    """A view of one face of a `Faces`.

    Attributes:
        faces: The picture's faces.
        index: Which one.
    """

    faces: Faces
    index: int

    @property
    def box(self) -> F32Array:
        """(4,) float32 x1 y1 x2 y2 in pixels of the upright picture."""
        return np.asarray(self.faces.boxes[self.index])

    @property
    def landmarks(self) -> F32Array:
        """(5, 2) float32 pixels."""
        return np.asarray(self.faces.landmarks[self.index])

    @property
    def score(self) -> float:
        """Detector score in [0, 1]."""
        return float(self.faces.scores[self.index])

    @property
    def embedding(self) -> F32Array:
        """(d,) float32, L2-normalised; NaN when the face could not be aligned."""
        return np.asarray(self.faces.embeddings[self.index])

    @property
    def norm(self) -> float:
        """Norm of the embedding before normalisation."""
        return float(self.faces.norms[self.index])

    @property
    def status(self) -> FaceStatus:
        """Whether it has an embedding, or why not."""
        return FaceStatus(int(self.faces.status[self.index]))

    @property
    def chip(self) -> NDArray[np.uint8] | None:
        """(h, w, 3) uint8 RGB aligned face, when chips were asked for."""
        return None if self.faces.chips is None else np.asarray(self.faces.chips[self.index])

    def similarity(self, other: FaceRecord) -> float:
        """Cosine similarity to `other` in [-1, 1]; higher is more alike."""
        return float(np.clip(self.embedding @ other.embedding, -1.0, 1.0))
