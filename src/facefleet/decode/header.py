"""The header of a picture: what can be known without decoding a pixel.

Runs in the thread that calls it. Refuses bytes of no known format; size limits are the decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from facefleet.decode import icon, jpeg, opencv, pillow, png
from facefleet.decode.formats import missing, sniff, supported_formats
from facefleet.errors import CorruptImageError, UnsupportedFormatError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a picture says.

    Attributes:
        format: By magic bytes, e.g. ``jpeg``.
        width: Width in pixels of the upright picture.
        height: Height in pixels of the upright picture.
        orientation: How it is stored, 1 to 8 as in Exif; 1 is upright.
        jpeg: The JPEG header, for a JPEG.
        opened: The picture opened by Pillow, not decoded, for what Pillow reads.
        opencv: The header, for what only OpenCV reads.
        icon: The chosen picture, for an icon.
    """

    format: str
    width: int
    height: int
    orientation: int
    jpeg: jpeg.JpegHeader | None = field(default=None, repr=False)
    opened: PILImage | None = field(default=None, repr=False)
    opencv: opencv.OpenCVHeader | None = field(default=None, repr=False)
    icon: icon.Icon | None = field(default=None, repr=False)


def probe(data: bytes, *, name: str = "<bytes>") -> Header:
    """Read the header of a picture.

    Args:
        data: The file.
        name: What to call it in errors.

    Raises:
        EmptyInputError: No bytes.
        UnsupportedFormatError: Not a format that this install reads.
        CorruptImageError: The header makes no sense.
        TruncatedImageError: The bytes end inside the header.
    """
    format_name = sniff(data, name=name)
    if not supported_formats()[format_name]:
        raise missing(format_name, name=name)
    if format_name == "jpeg":
        found = jpeg.read_header(data, name=name)
        return Header(format_name, *_turned(found.width, found.height, found.orientation), jpeg=found)
    if format_name == "ico":
        chosen = icon.largest(data, name=name)
        return Header(format_name, chosen.width, chosen.height, 1, icon=chosen)
    try:
        image = pillow.open_header(data, format_name, name=name)
    except (CorruptImageError, UnsupportedFormatError) as refusal:
        other = opencv.read_header(data, format_name, refusal)
        return Header(format_name, *_turned(other.width, other.height, other.orientation), opencv=other)
    orientation = png.orientation(data) if format_name == "png" else pillow.stored_orientation(image)
    width, height = pillow.stored_size(image)
    return Header(format_name, *_turned(width, height, orientation), opened=image)


def _turned(width: int, height: int, orientation: int) -> tuple[int, int, int]:
    return (height, width, orientation) if orientation >= 5 else (width, height, orientation)
