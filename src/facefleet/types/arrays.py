"""Names for the array types used in signatures, and the check that every struct-of-arrays uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import InternalError

F32Array = NDArray[np.float32]
U8Array = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]
RGBArray = NDArray[np.uint8]
"""(h, w, 3) uint8, upright, RGB, C-contiguous."""


def expect(name: str, array: NDArray[Any], shape: tuple[int | None, ...], dtype: type) -> None:
    """Check that `array` has `shape` (None: any length) and `dtype`.

    Raises:
        InternalError: It has not; only facefleet itself makes these arrays.
    """
    fits = array.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise InternalError(
            f"{name}: expected {np.dtype(dtype).name} of shape {shape}, got {array.dtype} of shape {array.shape}"
        )
