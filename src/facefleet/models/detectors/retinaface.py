"""RetinaFace as published for PyTorch: two priors a cell at strides 8, 16 and 32, offsets with variances 0.1, 0.2.

Source: Deng, Guo, Ververas, Kotsia, Zafeiriou, "RetinaFace: single-shot multi-level face localisation in the wild",
CVPR 2020; box coding from Liu et al., "SSD: single shot multibox detector", ECCV 2016, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from facefleet.models.detectors.base import Candidates, DetectorHead, above, by_width, grid, unexpected
from facefleet.types import F32Array

_PRIORS_PX = {8: (16, 32), 16: (64, 128), 32: (256, 512)}  # stride -> sides
CENTER_VARIANCE, SIZE_VARIANCE = np.float32(0.1), np.float32(0.2)
_TOP = 5000


@lru_cache(maxsize=64)
def priors(width: int, height: int) -> tuple[F32Array, F32Array]:
    """Centers (n, 2) and sides (n, 1) in pixels of all priors of a `width` x `height` input. Read only."""
    centers = [grid(width, height, stride, 2) + np.float32(stride / 2) for stride in _PRIORS_PX]
    sides = [
        np.tile(np.array(pair, np.float32), len(center) // 2)[:, None]
        for pair, center in zip(_PRIORS_PX.values(), centers, strict=True)
    ]
    return np.concatenate(centers), np.concatenate(sides)


class RetinaFaceHead(DetectorHead):
    """Reads RetinaFace outputs; see `DetectorHead`."""

    def __init__(self, outputs: Sequence[tuple[str, int]]) -> None:
        found = [by_width(outputs, last) for last in (4, 2, 10)]
        if [len(positions) for positions in found] != [1, 1, 1]:
            raise unexpected("retinaface", outputs, "one output each of widths 4, 2 and 10")
        self._boxes, self._scores, self._points = (positions[0] for positions in found)

    def candidates(
        self, outputs: Sequence[F32Array], row: int, width: int, height: int, threshold: float
    ) -> Candidates:
        """See `DetectorHead.candidates`. Scores are already softmax; at most the best 5,000 are returned."""
        scores = outputs[self._scores][row, :, 1]
        keep, rejected = above(scores, threshold)
        if len(keep) > _TOP:
            keep = np.sort(keep[np.argsort(-scores[keep], kind="stable")[:_TOP]])
        centers, sides = (array[keep] for array in priors(width, height))
        raw = outputs[self._boxes][row, keep]
        center = centers + raw[:, :2] * CENTER_VARIANCE * sides
        half = sides * np.exp(raw[:, 2:] * SIZE_VARIANCE) / 2
        offset = outputs[self._points][row, keep].reshape(-1, 5, 2) * CENTER_VARIANCE
        points = centers[:, None] + offset * sides[:, None]
        return Candidates(np.concatenate([center - half, center + half], axis=1), points, scores[keep], rejected)
