"""YuNet: one anchor a cell at strides 8, 16 and 32, class and object probabilities apart.

Source: Wu, Peng, Yu, "YuNet: a tiny millisecond-level face detector", Machine Intelligence Research 20, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from facefleet.models.detectors.base import Candidates, DetectorHead, above, by_width, grid, merge, unexpected
from facefleet.types import F32Array

_STRIDES = (8, 16, 32)


class YuNetHead(DetectorHead):
    """Reads YuNet outputs; see `DetectorHead`."""

    def __init__(self, outputs: Sequence[tuple[str, int]]) -> None:
        single, self._boxes, self._points = (by_width(outputs, last) for last in (1, 4, 10))
        if (len(single), len(self._boxes), len(self._points)) != (6, 3, 3):
            raise unexpected("yunet", outputs, "cls, obj, bbox and kps outputs at three strides")
        self._classes, self._objects = single[:3], single[3:]

    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """See `DetectorHead.candidates`. The score is the geometric mean of both probabilities."""
        parts = []
        for level, stride in enumerate(_STRIDES):
            classes = np.clip(outputs[self._classes[level]][row, :, 0], 0, 1)
            objects = np.clip(outputs[self._objects[level]][row, :, 0], 0, 1)
            scores = np.sqrt(classes * objects)
            keep, rejected = above(scores, threshold)
            corner = grid(width, height, stride, 1)[keep]
            raw = outputs[self._boxes[level]][row, keep]
            center = corner + raw[:, :2] * np.float32(stride)
            half = np.exp(raw[:, 2:]) * np.float32(stride / 2)
            offset = outputs[self._points[level]][row, keep].reshape(-1, 5, 2) * np.float32(stride)
            boxes = np.concatenate([center - half, center + half], axis=1)
            parts.append(Candidates(boxes, corner[:, None] + offset, scores[keep], rejected))
        return merge(parts)
