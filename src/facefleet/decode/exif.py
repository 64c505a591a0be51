"""Orientation, from Exif or XMP: how a stored picture has to be turned to be upright, and the turning.

Specifications: Exif 2.32 (CIPA DC-008), tag 274; XMP part 1, ``tiff:Orientation``. Exif goes first where both are
there. Pure; any thread.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from facefleet.types import RGBArray

_TAG = 0x0112
_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)\s*([1-8])")


def exif_orientation(tiff: bytes) -> int | None:
    """The orientation in the first directory of Exif data (from the TIFF header on).

    Returns:
        1 to 8; 1 for a value that makes no sense; None where there is no such tag.
    """
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        if order is None:
            return None
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * count, 12):
            tag, kind, _ = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == _TAG and kind in (3, 4):
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, entry + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:  # a directory that is cut off: what was read of it counts
        pass
    return None


def xmp_orientation(packet: bytes) -> int | None:
    """The orientation in an XMP packet; None where it names none."""
    found = _XMP.search(packet)
    return int(found[1]) if found else None


def upright(pixels: RGBArray, orientation: int) -> RGBArray:
    """Undo an orientation.

    Args:
        pixels: (h, w, 3) uint8 as stored.
        orientation: 1 to 8.

    Returns:
        The upright picture, C-contiguous; `pixels` itself for 1.
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
