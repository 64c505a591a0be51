"""Fit a picture into a detector's input: one scale for both axes, content top-left, zeros elsewhere.

Coordinates follow the convention the detectors were trained with: a point (x, y) of the picture lies at
(x * scale, y * scale) of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from facefleet.errors import ConfigError, InvalidArrayError
from facefleet.types import F32Array, RGBArray

MAX_SIDE_PX = 16384


@dataclass(frozen=True, slots=True)
class Letterbox:
    """How one picture lies in a detector input.

    Attributes:
        width: Input width in pixels, a multiple of the stride.
        height: Input height in pixels, a multiple of the stride.
        content_width: Columns the picture covers.
        content_height: Rows the picture covers.
        scale_x: Input pixels per pixel of the original picture.
        scale_y: The same for the other axis; differs from `scale_x` by the rounding of the content to pixels.
    """

    width: int
    height: int
    content_width: int
    content_height: int
    scale_x: float
    scale_y: float

    def to_original(self, points: F32Array) -> F32Array:
        """Map (..., 2) float32 points of the input to the original picture."""
        return np.asarray(points / np.array([self.scale_x, self.scale_y], np.float32), np.float32)


def plan_letterbox(width: int, height: int, size: int | str, stride: int, *, tight_px: int | None = None) -> Letterbox:
    """Decide how a `width` x `height` picture is fitted.

    Args:
        width: Width of the original in pixels, at least 1.
        height: Height of the original in pixels.
        size: Side of the square input in pixels, rounded up to `stride`; or ``native``: the picture is not resized
            and both sides are padded up to `stride`.
        stride: The detector's largest stride in pixels.
        tight_px: If given, pad no further than to `stride`, and enlarge only to this longer side.

    Raises:
        ConfigError: `size` is neither a positive number nor ``native``.
        InvalidArrayError: A ``native`` input would be larger than `MAX_SIDE_PX`.
    """
    if size == "native":
        if max(width, height) > MAX_SIDE_PX:
            raise InvalidArrayError(
                f"{width}x{height} is too large to detect at its native size",
                hint=f"use a fixed detector size; native goes up to {MAX_SIDE_PX}",
            )
        return Letterbox(round_up(width, stride), round_up(height, stride), width, height, 1.0, 1.0)
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"detector size {size!r}", hint="use pixels or 'native'")
    side = round_up(size, stride)
    scale = min(side / width, side / height)
    if tight_px is not None:
        scale = min(scale, max(1.0, tight_px / max(width, height)))
    content_width = max(1, min(side, int(width * scale + 1e-6)))
    content_height = max(1, min(side, int(height * scale + 1e-6)))
    box = (round_up(content_width, stride), round_up(content_height, stride)) if tight_px is not None else (side, side)
    return Letterbox(*box, content_width, content_height, content_width / width, content_height / height)


def letterbox(pixels: RGBArray, plan: Letterbox) -> RGBArray:
    """Draw `pixels` into a detector input.

    Args:
        pixels: (h, w, 3) uint8, at full resolution or reduced.
        plan: From `plan_letterbox` of the original's size.

    Returns:
        (plan.height, plan.width, 3) uint8, a new array.
    """
    target = (plan.content_width, plan.content_height)
    canvas = np.empty((plan.height, plan.width, 3), np.uint8)
    content = canvas[: plan.content_height, : plan.content_width]
    if (pixels.shape[1], pixels.shape[0]) == target:
        content[:] = pixels
    elif plan.content_width == plan.width:
        cv2.resize(pixels, target, dst=content, interpolation=cv2.INTER_LINEAR)  # contiguous: drawn in place
    else:
        content[:] = cv2.resize(pixels, target, interpolation=cv2.INTER_LINEAR)
    canvas[plan.content_height :] = 0
    canvas[: plan.content_height, plan.content_width :] = 0
    return canvas


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
