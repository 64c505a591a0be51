"""JPEG: its header, read by walking the markers, and its pixels, through libjpeg-turbo.

Specification: ITU-T T.81, annex B; Exif 2.32 for the orientation; Adobe technical note 5116 for the APP14 marker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from facefleet.errors import CorruptImageError, UnsupportedFormatError
from facefleet.types import RGBArray

_SOF = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_EOI, _SOS, _APP1 = 0xD9, 0xDA, 0xE1


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say.

    Attributes:
        width: Stored width in pixels.
        height: Stored height.
        components: Color components; 4 is CMYK or YCCK.
        orientation: Exif orientation, 1 to 8.
        complete: Whether the end marker is there.
    """

    width: int
    height: int
    components: int
    orientation: int
    complete: bool


def read_header(data: bytes, *, name: str) -> JpegHeader:
    """Walk the markers of a JPEG up to its first scan.

    Raises:
        CorruptImageError: There is no frame header, or it gives no size.
        UnsupportedFormatError: More than 8 bits a sample.
    """
    frame: tuple[int, int, int, int] | None = None
    orientation = 1
    position = 2
    while True:
        start = data.find(b"\xff", position)  # stray bytes between segments are skipped, as decoders do
        if start < 0 or start + 4 > len(data):
            break
        marker = data[start + 1]
        if marker in (0x00, 0xFF) or marker in _STANDALONE:
            position = start + (1 if marker == 0xFF else 2)
            continue
        if marker in (_SOS, _EOI):
            position = start + 2
            break
        length = struct.unpack_from(">H", data, start + 2)[0]
        body = data[start + 4 : start + 2 + length]
        if marker in _SOF and len(body) >= 6:
            precision, height, width, components = struct.unpack_from(">BHHB", body)
            frame = (precision, height, width, components)
        elif marker == _APP1 and body.startswith(b"Exif\x00") and orientation == 1:
            orientation = exif_orientation(body[6:])
        position = start + 2 + max(length, 2)
    if frame is None or not frame[1] or not frame[2]:
        raise CorruptImageError(f"{name}: a JPEG without a size", hint="the file is damaged; get it again")
    if frame[0] != 8:
        raise UnsupportedFormatError(f"{name}: a JPEG of {frame[0]} bits a sample", hint="convert it to 8 bits")
    complete = data.rfind(b"\xff\xd9") >= position
    return JpegHeader(frame[2], frame[1], frame[3], orientation, complete)


def exif_orientation(tiff: bytes) -> int:
    """The orientation tag (274) of the first directory of Exif data; 1 where there is none or it makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 10:
        return 1
    (first,) = struct.unpack_from(order + "I", tiff, 4)
    if first + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, first)
    for i in range(count):
        entry = first + 2 + 12 * i
        if entry + 12 > len(tiff):
            break
        tag, kind, _ = struct.unpack_from(order + "HHI", tiff, entry)
        if tag == 0x0112 and kind in (3, 4):
            (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def decode(data: bytes, header: JpegHeader, reduce: int) -> RGBArray | None:
    """Decode to RGB.

    Args:
        data: The file.
        header: Its header.
        reduce: 1, 2, 4 or 8: each side is divided by this, rounding up.

    Returns:
        (h, w, 3) uint8 RGB as stored, not rotated; None where libjpeg-turbo's simple interface does not manage it
        (CMYK, unusual files): another decoder has to.
    """
    import simplejpeg

    if header.components not in (1, 3):
        return None
    sides = {} if reduce == 1 else {"min_height": -(-header.height // reduce), "min_width": -(-header.width // reduce)}
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", strict=False, **sides)
    except (ValueError, RuntimeError, MemoryError):
        return None
    return np.asarray(pixels, np.uint8)
