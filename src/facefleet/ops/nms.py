"""Greedy non-maximum suppression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facefleet.types import BoolArray, F32Array

_FEW = 64


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
    # Few boxes are compared all at once; of many, only those that are kept with the others.
    table = _apart(slice(None), slice(None), x1, y1, x2, y2, area, iou) if len(order) <= _FEW else None
    for i in range(len(order)):
        if not alive[i]:
            continue
        kept.append(i)
        if limit is not None and len(kept) >= limit:
            break
        if table is not None:
            alive &= table[i]
        else:
            alive[i + 1 :] &= _apart(slice(i, i + 1), slice(i + 1, None), x1, y1, x2, y2, area, iou)[0]
    return order[kept]


def _apart(
    a: slice, b: slice, x1: F32Array, y1: F32Array, x2: F32Array, y2: F32Array, area: F32Array, iou: float
) -> BoolArray:
    """(n, m) whether boxes `a` and `b` overlap by no more than `iou`."""
    width = np.minimum(x2[a, None], x2[b]) - np.maximum(x1[a, None], x1[b])
    height = np.minimum(y2[a, None], y2[b]) - np.maximum(y1[a, None], y1[b])
    overlap = np.maximum(width, 0) * np.maximum(height, 0)
    return np.asarray(overlap <= iou * (area[a, None] + area[b] - overlap))


def overlaps(a: F32Array, b: F32Array) -> F32Array:
    """(n, m) intersection over union of (n, 4) and (m, 4) boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    first, second = ((boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b))
    return np.asarray(shared / (first[:, None] + second[None] - shared))
