"""What Pillow does not know of formats that it reads otherwise, through OpenCV: TIFFs of three floats, odd BMPs.

OpenCV never sees a picture whose size was not read here first, and its answer has to have that size. Its exceptions
are mapped here and nowhere else. Specifications: TIFF 6.0, section 2; the headers of Windows bitmaps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from facefleet.decode.arrays import picture_from_array
from facefleet.errors import CorruptImageError, FacefleetError, InvalidArrayError
from facefleet.types import RGBArray

_READS = frozenset({"tiff", "bmp"})
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_MAX_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class OpenCVHeader:
    """What has to be known before OpenCV may decode.

    Attributes:
        width: Stored width in pixels.
        height: Stored height.
        orientation: Orientation tag, 1 to 8.
        data: The file, its orientation set to 1, because versions of OpenCV differ in whether they apply it.
        refusal: Why Pillow did not take it; what is raised if OpenCV does not either.
    """

    width: int
    height: int
    orientation: int
    data: bytes
    refusal: FacefleetError


def read_header(data: bytes, format_name: str, refusal: FacefleetError) -> OpenCVHeader:
    """The size and orientation of a TIFF (its first directory) or BMP.

    Raises:
        FacefleetError: `refusal`: another format, or the header gives no size.
    """
    if format_name not in _READS:
        raise refusal
    try:
        found = _bmp_header(data, refusal) if format_name == "bmp" else _tiff_header(data, refusal)
    except struct.error:
        raise refusal from None
    if found.width < 1 or found.height < 1:
        raise refusal
    return found


def _bmp_header(data: bytes, refusal: FacefleetError) -> OpenCVHeader:
    (kind,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if kind == 12 else "<ii", data, 18)
    return OpenCVHeader(width, abs(height), 1, data, refusal)


def _tiff_header(data: bytes, refusal: FacefleetError) -> OpenCVHeader:
    order = "<" if data[:2] == b"II" else ">"
    (first,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, first)
    tags: dict[int, int] = {}
    plain = data
    for i in range(min(count, _MAX_ENTRIES)):
        entry = first + 2 + 12 * i
        tag, kind, _ = struct.unpack_from(order + "HHI", data, entry)
        if tag in (_WIDTH, _HEIGHT, _ORIENTATION) and kind in (3, 4):
            code = order + ("H" if kind == 3 else "I")
            (tags[tag],) = struct.unpack_from(code, data, entry + 8)
            if tag == _ORIENTATION and tags[tag] != 1:
                plain = plain[: entry + 8] + struct.pack(code, 1) + plain[entry + 8 + struct.calcsize(code) :]
    turned = tags.get(_ORIENTATION, 1)
    return OpenCVHeader(tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0), turned if 1 <= turned <= 8 else 1, plain, refusal)


def decode(header: OpenCVHeader, format_name: str, *, name: str) -> RGBArray:
    """Decode to (h, w, 3) uint8 RGB, not rotated.

    Raises:
        FacefleetError: OpenCV does not manage it either: the header's `refusal`.
        CorruptImageError: Its values are not finite.
    """
    cv2 = _quiet_opencv()
    # The fourth byte of a bitmap's pixel is more often nothing than alpha, so that three are asked for.
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION if format_name == "bmp" else cv2.IMREAD_UNCHANGED
    try:
        pixels = cv2.imdecode(np.frombuffer(header.data, np.uint8), flags)
    except (cv2.error, MemoryError):
        raise header.refusal from None
    if pixels is None or pixels.shape[:2] != (header.height, header.width):
        raise header.refusal
    if pixels.ndim == 3 and pixels.shape[2] >= 3:
        pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[2])]]
    try:
        return picture_from_array(pixels, name=name)
    except InvalidArrayError as error:
        raise CorruptImageError(error.message, hint="the file is damaged; get it again") from error


@lru_cache(maxsize=1)
def _quiet_opencv():  # type: ignore[no-untyped-def]  # noqa: ANN202  # a module
    """OpenCV, told once to keep its decoders' remarks on damaged files off stderr."""
    import cv2

    # OpenCV 5 moved the function to where OpenCV 4 has none.
    silence = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel
    silence(0)
    return cv2
