"""TIFFs that Pillow does not know (three channels of float, for one), through OpenCV.

Specification: TIFF 6.0, section 2. OpenCV does not apply the orientation when it is told to leave pixels unchanged.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np

from facefleet.decode.arrays import picture_from_array
from facefleet.errors import CorruptImageError
from facefleet.types import RGBArray

_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_MAX_ENTRIES = 512


def read_header(data: bytes, *, name: str) -> tuple[int, int, int]:
    """Width, height and orientation from the first directory.

    Raises:
        CorruptImageError: There is none that gives a size.
    """
    tags: dict[int, int] = {}
    order = "<" if data[:2] == b"II" else ">"
    try:
        (first,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, first)
        for i in range(min(count, _MAX_ENTRIES)):
            entry = first + 2 + 12 * i
            tag, kind, _ = struct.unpack_from(order + "HHI", data, entry)
            if tag in (_WIDTH, _HEIGHT, _ORIENTATION) and kind in (3, 4):
                (tags[tag],) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, entry + 8)
    except struct.error as error:
        raise _corrupt(name) from error
    if not tags.get(_WIDTH) or not tags.get(_HEIGHT):
        raise _corrupt(name)
    orientation = tags.get(_ORIENTATION, 1)
    return tags[_WIDTH], tags[_HEIGHT], orientation if 1 <= orientation <= 8 else 1


def decode(data: bytes, *, name: str) -> tuple[RGBArray, int]:
    """Decode to (h, w, 3) uint8 RGB, not rotated, and the orientation that it needs.

    Raises:
        CorruptImageError: OpenCV does not manage it either.
        InvalidArrayError: Its values are not finite.
    """
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # libtiff's remarks would go to stderr
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise _corrupt(name) from error
    if pixels is None:
        raise _corrupt(name)
    if pixels.ndim == 3 and pixels.shape[2] >= 3:
        pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[2])]]
    return picture_from_array(pixels, name=name), read_header(data, name=name)[2]


def _corrupt(name: str) -> CorruptImageError:
    return CorruptImageError(f"{name}: a TIFF that cannot be read", hint="convert it to PNG")
