"""The decoder: whatever holds a picture in, an upright RGB array out.

Owns the order of the checks: bytes, format, size against `max_pixels`, completeness, and only then pixels. Runs in
the threads that call it; pixels in decoding at a time are bounded.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.config import DecodeSettings
from facefleet.decode import jpeg, opencv, pillow
from facefleet.decode.arrays import picture_from_array
from facefleet.decode.budget import PixelBudget
from facefleet.decode.exif import upright
from facefleet.decode.header import Header, probe
from facefleet.decode.quiet import quiet_pillow
from facefleet.decode.reading import read_deferred, read_path
from facefleet.errors import (
    FacefleetError,
    ImageTooLargeError,
    InternalError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.types import DeferredImage, EncodedImage, Image, ImageSource, RGBArray

_REDUCTIONS = (8, 4)  # at twice the need, faces are mostly so small that the full picture is decoded too


class Decoder:
    """Decodes pictures; one serves any number of threads.

    Args:
        settings: Limits and options.
    """

    def __init__(self, settings: DecodeSettings | None = None) -> None:
        self.settings = settings or DecodeSettings()
        self._budget = PixelBudget(self.settings.max_pixels)
        quiet_pillow()

    def read(self, source: ImageSource, *, name: str | None = None) -> EncodedImage | Image:
        """Get hold of the bytes of a picture, or of its pixels where it has no bytes.

        Args:
            source: A path, bytes, an array (RGB order), a PIL image, or a typed picture.
            name: What to call it in errors and results; unset: its path, or the name that it brings.

        Raises:
            SourceError: It cannot be read.
            ImageTooLargeError: A file, or a PIL image, far beyond `max_pixels`.
            InvalidArrayError: An array that is no picture.
            UnsupportedFormatError: Something else altogether.
            InputError: A PIL image that cannot be decoded.
        """
        if isinstance(source, (EncodedImage, Image)):
            return source if name is None else replace(source, name=name)
        if isinstance(source, (bytes, bytearray, memoryview)):
            return EncodedImage(bytes(source), name or "<bytes>")
        if isinstance(source, (str, os.PathLike)):
            path = os.fsdecode(source)
            return EncodedImage(read_path(path, max_pixels=self.settings.max_pixels), name or path)
        if isinstance(source, DeferredImage):
            return EncodedImage(read_deferred(source), name or source.name)
        if isinstance(source, np.ndarray):
            return _image_from_array(source, name or "<array>")
        if hasattr(source, "getexif") and hasattr(source, "convert"):
            return self._from_pil(source, name)
        raise UnsupportedFormatError(
            f"a picture cannot be a {type(source).__name__}", hint="use a path, bytes, an array or a PIL image"
        )

    def decode(
        self,
        source: ImageSource,
        *,
        need_px: int | None = None,
        name: str | None = None,
        header: Header | None = None,
    ) -> Image:
        """Decode a picture.

        Args:
            source: As for `read`.
            need_px: The longer side the caller needs, in pixels. With ``scaled = "auto"`` a JPEG that is at least
                four times as large comes at 1/4 or 1/8, never below this; `Image.scale` says which. None: in full.
            name: As for `read`.
            header: What `probe` said of `source`, where it was asked; so that it is not read twice.

        Returns:
            The upright picture. Its pixels are the caller's own array where `source` was one that needed no change.

        Raises:
            InputError: It cannot be read, is no picture, is too large, damaged or cut off.
            InternalError: A bug of facefleet's; never because of the bytes.
        """
        try:
            loaded = self.read(source, name=name)
            if isinstance(loaded, Image):
                return loaded
            return self._decode_impl(loaded, need_px, header or probe(loaded.data, name=loaded.name))
        except (FacefleetError, InternalError):
            raise
        except Exception as error:
            raise InternalError(f"decoding failed with {type(error).__name__}: {error}") from error

    def plain_jpeg(self, loaded: EncodedImage, *, need_px: int | None = None) -> Header | None:
        """The header of a JPEG that another library may decode, in full; None: only `decode` reads it as it should.

        Args:
            loaded: Any picture.
            need_px: As for `decode`.

        Raises:
            InputError: It is no picture, or too large.
        """
        header = probe(loaded.data, name=loaded.name)
        self._check_size(header.width, header.height, loaded.name)
        found = header.jpeg
        if found is None or not found.complete or found.components not in (1, 3) or found.adobe:
            return None
        return header if self._reduction(header, need_px) == 1 else None

    def _decode_impl(self, loaded: EncodedImage, need_px: int | None, header: Header) -> Image:
        self._check_size(header.width, header.height, loaded.name)
        reduce = self._reduction(header, need_px)
        with self._budget.hold(header.width * header.height // reduce**2):
            pixels: RGBArray | None = None
            if header.jpeg is not None:
                pixels = self._from_jpeg(loaded, header.jpeg, reduce)
            if pixels is None:
                pixels, reduce = self._from_any(loaded, header), 1
            height, width = pixels.shape[:2]
        if reduce > 1:
            width, height = header.width, header.height
        return Image(pixels, width, height, loaded.name, header.format, 1.0 / reduce)

    def _check_size(self, width: int, height: int, name: str) -> None:
        if width * height > self.settings.max_pixels:
            raise ImageTooLargeError(
                f"{name}: {width}x{height} pixels, the limit is {self.settings.max_pixels}",
                hint="raise decode.max_pixels if you trust the source",
            )

    def _reduction(self, header: Header, need_px: int | None) -> int:
        if need_px is None or self.settings.scaled == "off" or header.jpeg is None:
            return 1
        longer = max(header.width, header.height)
        return next((k for k in _REDUCTIONS if longer >= need_px * k), 1)

    def _from_jpeg(self, loaded: EncodedImage, header: jpeg.JpegHeader, reduce: int) -> RGBArray | None:
        if not header.complete and self.settings.truncated == "refuse":
            raise TruncatedImageError(
                f"{loaded.name}: the JPEG has no end", hint="get it again, or use decode.truncated=read"
            )
        pixels = jpeg.decode(loaded.data, header, reduce)
        return None if pixels is None else upright(pixels, header.orientation)

    def _from_any(self, loaded: EncodedImage, header: Header) -> RGBArray:
        """The upright pixels of everything that the fast way for JPEG does not take."""
        name = loaded.name
        if header.opencv is not None:
            pixels = opencv.decode(header.opencv, header.format, name=name)
            return upright(pixels, header.orientation)
        data = loaded.data if header.icon is None else header.icon.data
        opened = header.opened or pillow.open_header(data, header.format, name=name)
        if header.opened is None:
            self._check_size(opened.width, opened.height, name)  # Pillow may read a header in another way
        pixels = pillow.pixels_of(
            opened,
            name=name,
            read_truncated=self.settings.truncated == "read",
            data=data,
            format_name=header.format,
            plain_inks=header.jpeg is not None and not header.jpeg.adobe,
        )
        # Pillow has turned a TIFF upright itself, unless it stopped half-way.
        return upright(pixels, pillow.orientation_of(opened) if header.format == "tiff" else header.orientation)

    def _from_pil(self, image: Any, name: str | None) -> Image:  # noqa: ANN401  # PIL is not imported for a type
        name = name or str(getattr(image, "filename", "") or "<PIL image>")
        self._check_size(image.width, image.height, name)
        with self._budget.hold(image.width * image.height):
            pixels = pillow.pixels_of(image, name=name, read_truncated=self.settings.truncated == "read")
            pixels = upright(pixels, pillow.orientation_of(image))
        return Image(pixels, pixels.shape[1], pixels.shape[0], name, "pil")


def _image_from_array(array: NDArray[Any], name: str) -> Image:
    pixels = picture_from_array(array, name=name)
    return Image(pixels, pixels.shape[1], pixels.shape[0], name)
