"""The best few faces of each track: those are embedded, instead of every face of every frame."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from facefleet.types import F32Array, Faces, FaceStatus, U8Array

_CHIP_PX = 112.0
_SHARP = 100.0


@dataclass(frozen=True, slots=True, order=True)
class Best:
    """One face worth embedding; the better of two is the greater.

    Attributes:
        usefulness: See `usefulness`.
        time_s: When it was seen; earlier is better among equals.
        row: Its row among the faces of the video.
        chip: (112, 112, 3) uint8 RGB.
    """

    usefulness: float
    earlier: float = field(repr=False)
    row: int
    chip: U8Array = field(compare=False, repr=False)

    @property
    def time_s(self) -> float:
        """When it was seen, in seconds."""
        return -self.earlier


class BestFaces:
    """The best faces of one track.

    Args:
        count: How many are kept.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.faces: list[Best] = []

    def offer(self, usefulness: float, time_s: float, row: int, chip: U8Array) -> bool:
        """Keep a face if it is among the best so far; whether it is. The chip is copied then."""
        candidate = Best(usefulness, -time_s, row, chip)
        if len(self.faces) == self._count and not self.faces[-1] < candidate:
            return False
        self.faces.append(Best(usefulness, -time_s, row, chip.copy()))
        self.faces.sort(reverse=True)
        del self.faces[self._count :]
        return True


def usefulness(faces: Faces) -> F32Array:
    """How much an embedding of each face can be trusted: large, frontal, sharp and surely detected is best.

    The product of the detector's score, the size up to that of a chip, the cosine of yaw and pitch, and
    blur / (blur + 100) for the variance of the Laplacian.

    Returns:
        (n,) float32 in [0, 1]; 0 where it cannot be aligned.
    """
    quality = faces.quality
    size = np.clip(quality.size_px / _CHIP_PX, 0, 1)
    frontal = np.cos(np.radians(np.nan_to_num(quality.yaw_deg))) * np.cos(np.radians(np.nan_to_num(quality.pitch_deg)))
    sharp = np.nan_to_num(quality.blur / (quality.blur + _SHARP))
    good = faces.status == FaceStatus.OK
    return np.asarray(np.where(good, faces.scores * size * np.clip(frontal, 0, 1) * sharp, 0), np.float32)
