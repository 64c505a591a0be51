"""Arrays as pictures: shapes, bit depths and alpha of whatever a caller or a decoder hands over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import InvalidArrayError
from facefleet.types import RGBArray


def picture_from_array(array: NDArray[Any], *, name: str) -> RGBArray:
    """Turn an array into a picture.

    Args:
        array: (h, w), (h, w, 1) grey, (h, w, 2) grey and alpha, (h, w, 3) RGB or (h, w, 4) RGBA; bool, uint8, uint16
            and uint32 (full scale the type's largest value), or float: values within 0..1 have full scale 1, others are divided by their maximum.
            Negative values are black. Alpha is composed on white.
        name: What to call it in errors.

    Returns:
        (h, w, 3) uint8 RGB, C-contiguous; `array` itself when it already is that.

    Raises:
        InvalidArrayError: Another shape or type, no pixels, or values that are not finite.
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)) or array.size == 0:
        raise InvalidArrayError(
            f"{name}: an array of shape {array.shape} is no picture", hint="use (h, w), (h, w, 3) RGB or (h, w, 4) RGBA"
        )
    samples = _to_uint8(array, name=name)
    if samples.ndim == 2:
        samples = samples[..., None]
    channels = samples.shape[2]
    if channels in (2, 4):
        color, alpha = samples[..., :-1].astype(np.uint16), samples[..., -1:].astype(np.uint16)
        samples = ((color * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    if samples.shape[2] == 1:
        samples = np.repeat(samples, 3, axis=2)
    return np.ascontiguousarray(samples)


def _to_uint8(array: NDArray[Any], *, name: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if array.dtype == np.uint32:
        return (array >> 24).astype(np.uint8)
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all():
            raise InvalidArrayError(f"{name}: values that are not finite", hint="replace NaN and infinity first")
        peak = max(float(array.max()), 1.0)
        return (np.clip(array, 0, None) * (255.0 / peak) + 0.5).astype(np.uint8)
    raise InvalidArrayError(f"{name}: arrays of {array.dtype} are no pictures", hint="use uint8, uint16, uint32, float or bool")
