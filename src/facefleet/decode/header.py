"""The header of a picture: what can be known without decoding a pixel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from facefleet.decode import jpeg, pillow, tiff
from facefleet.decode.formats import sniff
from facefleet.errors import CorruptImageError, UnsupportedFormatError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a picture says.

    Attributes:
        format: By magic bytes, e.g. ``jpeg``.
        width: Width in pixels of the upright picture.
        height: Height of the upright picture.
        orientation: Exif orientation, 1 to 8, that the stored pixels still need.
        jpeg: The JPEG header, for a JPEG.
        opened: The picture opened by Pillow, not decoded; None for JPEG and for TIFFs that only OpenCV reads.
    """

    format: str
    width: int
    height: int
    orientation: int
    jpeg: jpeg.JpegHeader | None = field(default=None, repr=False)
    opened: PILImage | None = field(default=None, repr=False)


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
    if format_name == "jpeg":
        found = jpeg.read_header(data, name=name)
        return _upright(format_name, found.width, found.height, found.orientation, jpeg=found)
    try:
        image = pillow.open_header(data, format_name, name=name)
    except (CorruptImageError, UnsupportedFormatError):
        if format_name != "tiff":
            raise
        width, height, orientation = tiff.read_header(data, name=name)
        return _upright(format_name, width, height, orientation)
    return _upright(format_name, image.width, image.height, pillow.orientation_of(image), opened=image)


def _upright(
    format_name: str,
    width: int,
    height: int,
    orientation: int,
    *,
    jpeg: jpeg.JpegHeader | None = None,
    opened: PILImage | None = None,
) -> Header:
    if orientation >= 5:
        width, height = height, width
    return Header(format_name, width, height, orientation, jpeg, opened)
