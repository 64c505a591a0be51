"""Arrays as pictures: shapes, bit depths and alpha of whatever a caller or a decoder hands over.

Works in blocks of rows, so that a picture takes its own size in memory and no multiple of it. Pure; any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import InvalidArrayError
from facefleet.types import RGBArray, U8Array

_BLOCK = 1 << 20
"""Samples of a block of rows."""


def picture_from_array(array: NDArray[Any], *, name: str, full: int | None = None) -> RGBArray:
    """Turn an array into a picture.

    Args:
        array: (h, w), (h, w, 1) grey, (h, w, 2) grey and alpha, (h, w, 3) RGB or (h, w, 4) RGBA; bool, uint8, uint16
            and uint32 (white is the type's largest value), or float: where all values are at most 1, white is 1;
            otherwise it is the largest value. Negative values are black. Alpha is composed on white.
        name: What to call it in errors.
        full: The value of white, where an integer type holds fewer bits than it has room for.

    Returns:
        (h, w, 3) uint8 RGB, C-contiguous; `array` itself when it already is that.

    Raises:
        InvalidArrayError: Another shape or type, no pixels, or values that are not finite.
    """
    array = np.asarray(array)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)) or array.size == 0:
        raise InvalidArrayError(
            f"{name}: an array of shape {array.shape} is no picture", hint="use (h, w), (h, w, 3) RGB or (h, w, 4) RGBA"
        )
    white = _white(array, full, name=name)
    if array.dtype == np.uint8 and white == 255 and array.ndim == 3 and array.shape[2] == 3:
        return np.ascontiguousarray(array)
    if array.ndim == 2:
        array = array[..., None]
    height, width, channels = array.shape
    picture = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BLOCK // (width * channels))
    for top in range(0, height, rows):
        picture[top : top + rows] = _on_white(_to_uint8(array[top : top + rows], white))
    return picture


def _white(array: NDArray[Any], full: int | None, *, name: str) -> float:
    """The value that becomes 255; refuses types and values that have none."""
    if array.dtype == np.bool_:
        return 1
    if array.dtype in (np.uint8, np.uint16, np.uint32):
        return full or int(np.iinfo(array.dtype).max)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())  # NaN and infinity show up in one of them
        if not (np.isfinite(low) and np.isfinite(high)):
            raise InvalidArrayError(f"{name}: values that are not finite", hint="replace NaN and infinity first")
        return max(high, 1.0)
    raise InvalidArrayError(
        f"{name}: arrays of {array.dtype} are no pictures", hint="use uint8, uint16, uint32, float or bool"
    )


def _to_uint8(block: NDArray[Any], white: float) -> U8Array:
    if block.dtype == np.uint8 and white == 255:
        return block
    if np.issubdtype(block.dtype, np.floating):
        scaled = np.clip(block.astype(np.float64) / white, 0, 1)
        return np.asarray(scaled * 255 + 0.5, np.uint8)
    level = int(white)
    wide = block.astype(np.uint64 if level > 0xFFFF else np.uint32)
    return np.asarray((np.minimum(wide, level) * 255 + level // 2) // level, np.uint8)


def _on_white(block: U8Array) -> U8Array:
    """(h, w, c) of 1 to 4 channels to something that broadcasts to (h, w, 3)."""
    if block.shape[2] in (1, 3):
        return block
    color, alpha = block[..., :-1].astype(np.uint16), block[..., -1:].astype(np.uint16)
    return np.asarray((color * alpha + 255 * (255 - alpha) + 127) // 255, np.uint8)
