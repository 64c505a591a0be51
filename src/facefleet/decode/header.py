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
        width: Width in pixels as stored, before any rotation.
        height: Height as stored.
        jpeg: The JPEG header, for a JPEG.
        opened: The picture opened by Pillow, not decoded; None for JPEG and for TIFFs that only OpenCV reads.
    """

    format: str
    width: int
    height: int
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
        return Header(format_name, found.width, found.height, jpeg=found)
    try:
        image = pillow.open_header(data, format_name, name=name)
    except (CorruptImageError, UnsupportedFormatError):
        if format_name != "tiff":
            raise
        width, height, _ = tiff.read_header(data, name=name)
        return Header(format_name, width, height)
    return Header(format_name, image.width, image.height, opened=image)
