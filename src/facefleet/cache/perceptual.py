"""A hash by which pictures that look the same are alike: for video, where neighboring frames hardly differ.

Source: the difference hash of Neal Krawetz, "Kind of Like That", The Hacker Factor Blog, 2013, 16 x 16 bits.
"""

from __future__ import annotations

import cv2
import numpy as np

from facefleet.types import RGBArray

_SIDE = 16


def difference_hash(pixels: RGBArray) -> int:
    """256 bits: whether each cell of a small grey copy is brighter than its left neighbor.

    Args:
        pixels: (h, w, 3) uint8 RGB.
    """
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (_SIDE + 1, _SIDE), interpolation=cv2.INTER_AREA).astype(np.int16)
    bits = np.packbits(small[:, 1:] > small[:, :-1])
    return int.from_bytes(bits.tobytes(), "big")
