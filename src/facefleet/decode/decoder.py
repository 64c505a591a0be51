"""The decoder: whatever holds a picture in, an upright RGB array out.

Owns the order of the checks: bytes, format, size against `max_pixels`, completeness, and only then pixels. Runs in
the threads that call it; pixels in decoding at a time are bounded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.config import DecodeSettings
from facefleet.decode import jpeg, pillow, tiff
from facefleet.decode.arrays import picture_from_array
from facefleet.decode.header import Header, probe
from facefleet.errors import (
    ImageTooLargeError,
    SourceError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.types import DeferredImage, EncodedImage, Image, ImageSource, RGBArray

_REDUCTIONS = (8, 4, 2)


class Decoder:
    """Decodes pictures; one serves any number of threads.

    Args:
        settings: Limits and options.
    """

    def __init__(self, settings: DecodeSettings | None = None) -> None:
        self.settings = settings or DecodeSettings()
        self._budget = _PixelBudget(self.settings.max_pixels)
        pillow.quiet()

    def read(self, source: ImageSource) -> EncodedImage | Image:
        """Get hold of the bytes of a picture, or of its pixels where it has no bytes.

        Args:
            source: A path, bytes, an array (RGB order), a PIL image, or a typed picture.

        Raises:
            SourceError: It cannot be read.
            InvalidArrayError: An array that is no picture.
            UnsupportedFormatError: Something else altogether.
        """
        if isinstance(source, (EncodedImage, Image)):
            return source
        if isinstance(source, (bytes, bytearray, memoryview)):
            return EncodedImage(bytes(source))
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            return EncodedImage(_bytes_of(path, lambda: Path(path).read_bytes()), path)
        if isinstance(source, DeferredImage):
            return EncodedImage(_bytes_of(source.name, source.load), source.name)
        if isinstance(source, np.ndarray):
            return _image_from_array(source)
        if hasattr(source, "getexif") and hasattr(source, "convert"):
            return self._from_pil(source)
        raise UnsupportedFormatError(
            f"a picture cannot be a {type(source).__name__}", hint="use a path, bytes, an array or a PIL image"
        )

    def decode(self, source: ImageSource, *, need_px: int | None = None) -> Image:
        """Decode a picture.

        Args:
            source: As for `read`.
            need_px: The longer side the caller needs, in pixels. With ``scaled = "auto"`` a JPEG that is at least
                twice as large comes at 1/2, 1/4 or 1/8, never below this; `Image.scale` says which. None: in full.

        Raises:
            InputError: It cannot be read, is no picture, is too large, damaged or cut off.
        """
        loaded = self.read(source)
        if isinstance(loaded, Image):
            return loaded
        header = probe(loaded.data, name=loaded.name)
        if header.width * header.height > self.settings.max_pixels:
            raise ImageTooLargeError(
                f"{loaded.name}: {header.width}x{header.height} pixels, the limit is {self.settings.max_pixels}",
                hint="raise decode.max_pixels if you trust the source",
            )
        reduce = self._reduction(header, need_px)
        with self._budget.hold(header.width * header.height // reduce**2):
            stored, orientation = self._pixels(loaded, header, reduce)
            if header.jpeg is not None and stored.shape[:2] == (header.height, header.width):
                reduce = 1  # another decoder had to take it, in full
            pixels = upright(stored, orientation)
        height, width = pixels.shape[:2]
        if reduce != 1:
            turned = orientation >= 5
            width, height = (header.height, header.width) if turned else (header.width, header.height)
        return Image(pixels, width, height, loaded.name, header.format, 1.0 / reduce)

    def _reduction(self, header: Header, need_px: int | None) -> int:
        if need_px is None or self.settings.scaled == "off" or header.jpeg is None:
            return 1
        longer = max(header.width, header.height)
        return next((k for k in _REDUCTIONS if longer >= need_px * k), 1)

    def _pixels(self, loaded: EncodedImage, header: Header, reduce: int) -> tuple[RGBArray, int]:
        """Pixels as stored, and the orientation they still need."""
        keep = self.settings.truncated == "read"
        if header.jpeg is not None:
            if not header.jpeg.complete and not keep:
                raise TruncatedImageError(
                    f"{loaded.name}: the JPEG has no end", hint="get it again, or use decode.truncated=read"
                )
            pixels = jpeg.decode(loaded.data, header.jpeg, reduce)
            if pixels is not None:
                return pixels, header.jpeg.orientation
        elif header.opened is None:
            return tiff.decode(loaded.data, name=loaded.name)
        opened = header.opened or pillow.open_header(loaded.data, header.format, name=loaded.name)
        pixels = pillow.pixels_of(opened, name=loaded.name, read_truncated=keep)
        # Pillow turns some formats upright itself while it loads, and then takes the tag away.
        return pixels, pillow.orientation_of(opened)

    def _from_pil(self, image: Any) -> Image:  # noqa: ANN401  # PIL is not imported for a type
        name = str(getattr(image, "filename", "") or "<PIL image>")
        orientation = pillow.orientation_of(image)
        pixels = pillow.pixels_of(image, name=name, read_truncated=False)
        pixels = upright(pixels, orientation)
        return Image(pixels, pixels.shape[1], pixels.shape[0], name, "pil")


def upright(pixels: RGBArray, orientation: int) -> RGBArray:
    """Undo an Exif orientation (Exif 2.32, tag 274).

    Args:
        pixels: (h, w, 3) uint8 as stored.
        orientation: 1 to 8.

    Returns:
        The upright picture, C-contiguous.
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _image_from_array(array: NDArray[Any]) -> Image:
    pixels = picture_from_array(array, name="<array>")
    return Image(pixels, pixels.shape[1], pixels.shape[0])


def _bytes_of(name: str, load: Any) -> bytes:  # noqa: ANN401  # any callable that returns bytes
    try:
        return bytes(load())
    except FileNotFoundError as error:
        raise SourceError(f"{name}: no such file", hint="check the path") from error
    except IsADirectoryError as error:
        raise SourceError(f"{name}: is a folder", hint="give a picture, or use a job for folders") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{name}: cannot be read ({error})", hint="check permissions and the disk") from error


class _PixelBudget:
    """At most `limit` pixels are being decoded at a time; a picture larger than that waits until it is alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= self._limit)
            self._used += pixels
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()
