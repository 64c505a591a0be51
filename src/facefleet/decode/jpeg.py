"""JPEG: its header, read by walking the markers, and its pixels, through libjpeg-turbo.

Specifications: ITU-T T.81, annex B; Adobe technical note 5116 for the APP14 marker.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np

from facefleet.decode.exif import exif_orientation, xmp_orientation
from facefleet.errors import CorruptImageError, UnsupportedFormatError
from facefleet.types import RGBArray

# Stray bytes between segments, fill bytes and markers without a segment (TEM, RSTn, SOI) are skipped, as decoders do.
_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
_SOF = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_EOI, _SOS, _APP1, _APP14 = 0xD9, 0xDA, 0xE1, 0xEE
_XMP_ID = b"http://ns.adobe.com/xap/1.0/\x00"
_MAX_SEGMENTS = 65_536
_MAX_SCANS = 100
"""Real progressive files have about ten. Each scan walks the whole picture: many in few bytes would stall a decoder."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say.

    Attributes:
        width: Stored width in pixels.
        height: Stored height.
        components: Color components; 4 is CMYK or YCCK.
        orientation: 1 to 8.
        adobe: Whether there is an Adobe marker: then the four inks are stored inverted.
        complete: Whether the end marker is there.
    """

    width: int
    height: int
    components: int
    orientation: int
    adobe: bool
    complete: bool


def read_header(data: bytes, *, name: str) -> JpegHeader:
    """Walk the markers of a JPEG up to its first scan.

    Raises:
        CorruptImageError: There is no frame header, it gives no size, or there are far too many segments or scans.
        UnsupportedFormatError: More than 8 bits a sample.
    """
    frame: tuple[int, int, int, int] | None = None
    from_exif: int | None = None
    from_xmp: int | None = None
    progressive = adobe = False
    position = 2
    for _ in range(_MAX_SEGMENTS):
        found = _MARKER.search(data, position)
        if found is None or found.end() + 2 > len(data):
            break
        marker, position = found[1][0], found.end()
        if marker in (_SOS, _EOI):
            break
        (length,) = struct.unpack_from(">H", data, position)
        body = data[position + 2 : position + length]
        if marker in _SOF and len(body) >= 6:
            frame = struct.unpack_from(">BHHB", body)
            progressive = marker in _PROGRESSIVE
        elif marker == _APP1 and body.startswith(b"Exif\x00") and from_exif is None:
            from_exif = exif_orientation(body[6:])
        elif marker == _APP1 and body.startswith(_XMP_ID) and from_xmp is None:
            from_xmp = xmp_orientation(body)
        elif marker == _APP14 and body.startswith(b"Adobe"):
            adobe = True
        position += max(length, 2)
    else:
        raise CorruptImageError(f"{name}: a JPEG of more than {_MAX_SEGMENTS} segments", hint="it is no honest photo")
    if frame is None or not frame[1] or not frame[2]:
        raise CorruptImageError(f"{name}: a JPEG without a size", hint="the file is damaged; get it again")
    if frame[0] != 8:
        raise UnsupportedFormatError(f"{name}: a JPEG of {frame[0]} bits a sample", hint="convert it to 8 bits")
    whole = data.endswith(b"\xff\xd9", position)  # nearly always; a search reads the whole file
    end = len(data) - 2 if whole and not progressive else data.find(b"\xff\xd9", position)
    if progressive and data.count(b"\xff\xda", position, len(data) if end < 0 else end) > _MAX_SCANS:
        raise CorruptImageError(f"{name}: a JPEG of more than {_MAX_SCANS} scans", hint="it is no honest photo")
    return JpegHeader(frame[2], frame[1], frame[3], from_exif or from_xmp or 1, adobe, end >= 0)


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
    height, width = -(-header.height // reduce), -(-header.width // reduce)
    try:
        if simplejpeg.decode_jpeg_header(data, strict=False)[:2] != (header.height, header.width):
            return None  # two readings of one header: neither may decide how much memory is taken
        sides = {} if reduce == 1 else {"min_height": height, "min_width": width}
        pixels = simplejpeg.decode_jpeg(data, "RGB", strict=False, **sides)
    except Exception:  # whatever it is, the other decoder says it better
        return None
    return np.asarray(pixels, np.uint8) if pixels.shape[:2] == (height, width) else None
