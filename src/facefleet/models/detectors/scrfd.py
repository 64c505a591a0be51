"""SCRFD: distances from anchor points at three or five strides, with or without landmarks.

Source: Guo, Deng, Lattas, Zafeiriou, "Sample and computation redistribution for efficient face detection", ICLR
2022; layout of the published files: scores, then boxes, then landmarks, each by rising stride.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from facefleet.models.detectors.base import Candidates, DetectorHead, above, by_width, grid, merge, unexpected
from facefleet.types import F32Array

_LAYOUTS = {3: ((8, 16, 32), 2), 5: ((8, 16, 32, 64, 128), 1)}  # outputs a kind -> strides, anchors a cell


class ScrfdHead(DetectorHead):
    """Reads SCRFD outputs; see `DetectorHead`."""

    def __init__(self, outputs: Sequence[tuple[str, int]]) -> None:
        self._scores, self._boxes, self._points = (by_width(outputs, last) for last in (1, 4, 10))
        if len(self._scores) not in _LAYOUTS or len(self._boxes) != len(self._scores):
            raise unexpected("scrfd", outputs, "3 or 5 score, box and perhaps landmark outputs")
        if self._points and len(self._points) != len(self._scores):
            raise unexpected("scrfd", outputs, "as many landmark outputs as score outputs, or none")
        self._strides, self._anchors = _LAYOUTS[len(self._scores)]

    @property
    def strides(self) -> tuple[int, ...]:
        """Input pixels a cell of each level."""
        return self._strides

    @property
    def anchors(self) -> int:
        """Candidates a cell."""
        return self._anchors

    @property
    def kinds(self) -> tuple[list[int], list[int], list[int]]:
        """Positions of the outputs for scores, boxes and landmarks, by rising stride; of landmarks perhaps none."""
        return self._scores, self._boxes, self._points

    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """See `DetectorHead.candidates`. Scores are already probabilities."""
        parts = []
        for level, stride in enumerate(self._strides):
            scores = outputs[self._scores[level]][row, :, 0]
            keep, rejected = above(scores, threshold)
            center = grid(width, height, stride, self._anchors)[keep]
            distance = outputs[self._boxes[level]][row, keep] * np.float32(stride)
            boxes = np.concatenate([center - distance[:, :2], center + distance[:, 2:]], axis=1)
            points = None
            if self._points:
                offset = outputs[self._points[level]][row, keep].reshape(-1, 5, 2) * np.float32(stride)
                points = center[:, None] + offset
            parts.append(Candidates(boxes, points, scores[keep], rejected))
        return merge(parts)
