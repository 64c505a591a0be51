"""Greedy non-maximum suppression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facefleet.types import F32Array


def nms(boxes: F32Array, scores: F32Array, iou: float, *, limit: int | None = None) -> NDArray[np.intp]:
    """Keep the strongest of overlapping boxes.

    Args:
        boxes: (n, 4) float32 x1 y1 x2 y2 with positive area.
        scores: (n,) float32; equal scores keep their input order.
        iou: A box is dropped when its intersection over union with a stronger kept one is above this.
        limit: Stop after this many.

    Returns:
        (k,) indices of the kept boxes, strongest first.
    """
    order = np.argsort(-scores, kind="stable")
    x1, y1, x2, y2 = boxes[order].T
    area = (x2 - x1) * (y2 - y1)
    alive = np.ones(len(order), bool)
    kept: list[int] = []
    for i in range(len(order)):
        if not alive[i]:
            continue
        kept.append(i)
        if limit is not None and len(kept) >= limit:
            break
        rest = slice(i + 1, None)
        width = np.minimum(x2[i], x2[rest]) - np.maximum(x1[i], x1[rest])
        height = np.minimum(y2[i], y2[rest]) - np.maximum(y1[i], y1[rest])
        overlap = np.maximum(width, 0) * np.maximum(height, 0)
        alive[rest] &= overlap <= iou * (area[i] + area[rest] - overlap)
    return order[kept]


def overlaps(a: F32Array, b: F32Array) -> F32Array:
    """(n, m) intersection over union of (n, 4) and (m, 4) boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    first, second = ((boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b))
    return np.asarray(shared / (first[:, None] + second[None] - shared))
