"""From a decoder's frame to upright RGB: color matrix and range, bit depth, rotation. Once, and here only.

Stateful only in the scaler it keeps; one object a thread.
"""

from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np

from facefleet.decode.ffmpeg import AvObject, load
from facefleet.errors import ImageTooLargeError
from facefleet.types import RGBArray, U8Array

_UNSPECIFIED = (2, 3)  # AVCOL_SPC_UNSPECIFIED and RESERVED, ISO/IEC 23091-2
_HD_WIDTH_PX, _SD_HEIGHT_PX = 1280, 576
_THUMB = (32, 18)
_ROWS = 180
_NOISE = 2.0


class Developer:
    """Makes pictures of frames.

    Full and limited range, 8 to 16 bits and every pixel format are libswscale's to convert; the matrix is the
    stream's, and where it names none, BT.709 for high definition and BT.601 below, as players guess.

    Args:
        max_pixels: Larger frames are refused.
    """

    def __init__(self, max_pixels: int) -> None:
        av = load()
        self._max_pixels = max_pixels
        self._scaler = av.video.reformatter.VideoReformatter()
        self._high, self._standard = av.video.reformatter.Colorspace.ITU709, av.video.reformatter.Colorspace.ITU601

    def rgb(self, frame: AvObject) -> RGBArray:
        """(h, w, 3) uint8 RGB, upright, contiguous.

        Raises:
            ImageTooLargeError: It has more pixels than allowed.
        """
        if frame.width * frame.height > self._max_pixels:
            raise ImageTooLargeError(
                f"a frame of {frame.width} x {frame.height} pixels", hint="raise decode.max_pixels if you trust it"
            )
        options: dict[str, Any] = {}
        if int(frame.colorspace) in _UNSPECIFIED:
            high = frame.width >= _HD_WIDTH_PX or frame.height > _SD_HEIGHT_PX
            options["src_colorspace"] = self._high if high else self._standard
        converted = self._scaler.reformat(frame, format="rgb24", threads=1, **options)
        return upright(converted.to_ndarray(), orientation(frame))


def orientation(frame: AvObject) -> tuple[int, int, int, int]:
    """Signs (a, b, c, d) of a frame's display matrix: x' = a x + c y, y' = b x + d y. Upright: (1, 0, 0, 1).

    Angles between multiples of 90 degrees go to the nearest one.
    """
    found = frame.side_data  # by index: iterating gives objects up to PyAV 18, and their types from 19 on
    for side in (found[at] for at in range(len(found))):
        if side.type.name == "DISPLAYMATRIX":
            a, b, _, c, d = struct.unpack("=5i", bytes(side)[:20])
            if abs(a) + abs(d) >= abs(b) + abs(c):
                return (-1 if a < 0 else 1), 0, 0, (-1 if d < 0 else 1)
            return 0, (-1 if b < 0 else 1), (-1 if c < 0 else 1), 0
    return 1, 0, 0, 1


def upright(pixels: RGBArray, signs: tuple[int, int, int, int]) -> RGBArray:
    """Turn and mirror (h, w, 3) as a display matrix says; see `orientation`."""
    a, b, c, d = signs
    across, down = (c, b) if b or c else (a, d)
    turned = np.asarray(cv2.transpose(pixels) if b or c else pixels, np.uint8)
    if across < 0 or down < 0:
        turned = np.asarray(cv2.flip(turned, -1 if across == down else 1 if across < 0 else 0), np.uint8)
    return np.ascontiguousarray(turned)


def thumbnail(frame: AvObject) -> U8Array:
    """(18, 32) uint8 brightness of a frame, without converting all of it: what scene changes are seen by."""
    plane, component = frame.planes[0], frame.format.components[0]
    depth = component.bits
    if frame.format.is_planar or len(frame.format.components) == 1:
        kind, step = ("<u2", 2) if depth > 8 else ("u1", 1)
        line = np.frombuffer(plane, kind).reshape(-1, plane.line_size // step)[: frame.height, : frame.width]
        rows = np.ascontiguousarray(line[:: max(1, frame.height // _ROWS)])  # all of them would cost a millisecond
        small = cv2.resize(rows, _THUMB, interpolation=cv2.INTER_AREA)
        # NVDEC's P010 and P016 have their bits at the top of 16, other formats at the bottom.
        shift = 8 if frame.format.name.startswith("p0") else depth - 8
        return np.asarray(np.right_shift(small, shift) if depth > 8 else small, np.uint8)
    return np.asarray(frame.reformat(width=_THUMB[0], height=_THUMB[1], format="gray").to_ndarray())


def change(before: U8Array, now: U8Array) -> float:
    """How much two thumbnails differ: 1 - normalized correlation, 0 to 1; brightness and contrast do not count."""
    a, b = (thumb.astype(np.float64) - thumb.mean() for thumb in (before, now))
    floor = _NOISE**2 * a.size  # two flat frames are alike, whatever their noise
    alike = ((a * b).sum() + floor) / (np.sqrt((a * a).sum() * (b * b).sum()) + floor)
    return float(np.clip(1 - alike, 0, 1))
