"""Faces made unrecognizable: a mosaic so coarse that no face is left. Pure functions, safe in any thread."""

from __future__ import annotations

import cv2
import numpy as np

from facefleet.types import F32Array, RGBArray

_GROW = 0.3
_CELLS = 5


def redact(pixels: RGBArray, box: F32Array) -> None:
    """Replace what is in and around a box by 5 cells across, in place.

    Args:
        pixels: (h, w, 3) uint8, writable.
        box: (4,) x1 y1 x2 y2; enlarged by 30 % of its size on every side.
    """
    height, width = pixels.shape[:2]
    grow = (box[2:] - box[:2]) * _GROW
    x1, y1 = np.floor(np.clip(box[:2] - grow, 0, (width, height))).astype(int)
    x2, y2 = np.ceil(np.clip(box[2:] + grow, 0, (width, height))).astype(int)
    if x2 <= x1 or y2 <= y1:
        return
    region = pixels[y1:y2, x1:x2]
    cells = (min(_CELLS, x2 - x1), min(_CELLS, y2 - y1))
    small = cv2.resize(region, cells, interpolation=cv2.INTER_AREA)
    pixels[y1:y2, x1:x2] = cv2.resize(small, (x2 - x1, y2 - y1), interpolation=cv2.INTER_NEAREST)
