"""Every format but plain JPEG, through Pillow; its exceptions are mapped here and nowhere else.

Plugins are called by the format that the magic bytes gave: nothing is guessed twice, no list of Pillow's that others
may change is consulted or changed, and Pillow's global size limit, which would warn on stderr, gives way to the
decoder's own. Runs in the threads that call it; Pillow lets go of the GIL while it decodes.
"""

from __future__ import annotations

import importlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from facefleet.decode.arrays import picture_from_array
from facefleet.decode.complete import ends_early
from facefleet.decode.exif import exif_orientation, xmp_orientation
from facefleet.decode.quiet import quiet_libtiff
from facefleet.errors import (
    CorruptImageError,
    FacefleetError,
    ImageTooLargeError,
    InvalidArrayError,
    TruncatedImageError,
    UnsupportedFormatError,
)
from facefleet.types import RGBArray

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

_ORIENTATION = 0x0112
_PHOTOMETRIC, _BITS, _SAMPLE_FORMAT = 262, 258, 339
_BAND_PIXELS = 1 << 20
_PLUGINS = {
    "jpeg": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "png": ("PIL.PngImagePlugin", "PngImageFile"),
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "webp": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "tiff": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "jpeg2000": ("PIL.Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "ico": ("PIL.IcoImagePlugin", "IcoImageFile"),
    "qoi": ("PIL.QoiImagePlugin", "QoiImageFile"),
    "pnm": ("PIL.PpmImagePlugin", "PpmImageFile"),
    "tga": ("PIL.TgaImagePlugin", "TgaImageFile"),
    "avif": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "heic": ("pillow_heif", "HeifImageFile"),
}


def open_header(data: bytes, format_name: str, *, name: str) -> PILImage:
    """Open a picture; nothing but an icon is decoded by it.

    Raises:
        UnsupportedFormatError: A variant of the format that this install does not read.
        CorruptImageError: The header makes no sense.
        TruncatedImageError: It ends too early.
    """
    module, plugin = _PLUGINS[format_name]
    try:
        if format_name == "tiff":
            quiet_libtiff()
        image: PILImage = getattr(importlib.import_module(module), plugin)(io.BytesIO(data), name)
    except Exception as error:  # damaged bytes make plugins raise anything at all
        raise mapped(error, name=name, cut=ends_early(data, format_name)) from error
    if image.width < 1 or image.height < 1:
        raise CorruptImageError(f"{name}: the header gives no size", hint="the file is damaged; get it again")
    return image


def stored_size(image: PILImage) -> tuple[int, int]:
    """Width and height of an opened picture as stored: Pillow gives a TIFF's as it will be once loaded and turned."""
    tags = getattr(image, "tag_v2", None)
    turned = tags is not None and tags.get(_ORIENTATION) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)


def stored_orientation(image: PILImage) -> int:
    """The orientation that the header of an opened picture gives, 1 to 8; 1 where nothing is said.

    Not for PNG, whose Exif data Pillow finds by decoding the picture.
    """
    found: int | None = None
    exif, xmp = image.info.get("exif"), image.info.get("xmp")
    tags = getattr(image, "tag_v2", {})
    if isinstance(tags.get(_ORIENTATION), int):
        found = tags[_ORIENTATION] if 1 <= tags[_ORIENTATION] <= 8 else 1
    elif isinstance(exif, bytes):
        found = exif_orientation(exif.removeprefix(b"Exif\x00\x00"))
    # In AVIF only irot and imir count (ISO/IEC 23000-22); Pillow writes them into the Exif data.
    if found is None and isinstance(xmp, bytes) and image.format != "AVIF":
        found = xmp_orientation(xmp)
    return found or 1


def orientation_of(image: PILImage) -> int:
    """The orientation that the pixels of a loaded picture still need, 1 to 8."""
    if image.format == "AVIF":
        return stored_orientation(image)
    try:
        value = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata is no reason to refuse a picture
        return 1
    return value if 1 <= value <= 8 else 1


def pixels_of(
    image: PILImage,
    *,
    name: str,
    read_truncated: bool,
    data: bytes = b"",
    format_name: str = "",
    plain_inks: bool = False,
) -> RGBArray:
    """Decode an opened picture.

    Args:
        image: From `open_header`, or any PIL image. Pillow turns a TIFF upright while it loads and takes its tag away;
            `orientation_of` says afterwards what is left to do.
        name: What to call it in errors.
        read_truncated: Whether to take what there is of a file that ends early.
        data: The file, for telling whether it was cut off.
        format_name: Its format.
        plain_inks: Whether a CMYK JPEG holds its inks as they are; Pillow takes all of them for inverted.

    Returns:
        (h, w, 3) uint8 RGB, not rotated.

    Raises:
        TruncatedImageError: The bytes end early.
        CorruptImageError: They are damaged.
        UnsupportedFormatError: A variant that Pillow does not decode.
        ImageTooLargeError: There is not enough memory for it.
    """
    try:
        image.load()
    except Exception as error:  # damaged bytes make plugins raise anything at all
        failure = mapped(error, name=name, cut=ends_early(data, format_name))
        partial = getattr(image, "_im", None)
        if not (read_truncated and isinstance(failure, TruncatedImageError) and partial):
            raise failure from error
        image.tile = []  # type: ignore[attr-defined]  # what was decoded before the end is in place
        image._size = partial.size
    try:
        if plain_inks and image.mode == "CMYK":
            from PIL import ImageChops

            image = ImageChops.invert(image)
        return _to_rgb(image, name=name)
    except InvalidArrayError as error:
        raise CorruptImageError(error.message, hint="the file is damaged; get it again") from error
    except Exception as error:  # damaged palettes and the like
        raise mapped(error, name=name) from error


def mapped(error: Exception, *, name: str, cut: bool = False) -> FacefleetError:
    """The typed error for what Pillow raised.

    Args:
        error: Anything.
        name: What to call the picture.
        cut: Whether the file is known to end early.
    """
    from PIL.Image import DecompressionBombError

    if isinstance(error, FacefleetError):
        return error
    if isinstance(error, DecompressionBombError):
        return ImageTooLargeError(f"{name}: {error}", hint="Pillow refuses frames of this size")
    if isinstance(error, MemoryError):
        return ImageTooLargeError(f"{name}: does not fit in memory", hint="lower decode.max_pixels, or free memory")
    text = f"{type(error).__name__}: {error}"
    lower = text.lower()
    if cut or "truncated" in lower or "not enough data" in lower or isinstance(error, EOFError):
        return TruncatedImageError(
            f"{name}: the file ends too early ({text})", hint="get it again, or use decode.truncated=read"
        )
    if "unsupported" in lower or "not supported" in lower or isinstance(error, NotImplementedError):
        return UnsupportedFormatError(f"{name}: {text}", hint="convert it to a plain PNG or JPEG")
    return CorruptImageError(f"{name}: cannot be decoded ({text})", hint="the file is damaged; get it again")


def _to_rgb(image: PILImage, *, name: str) -> RGBArray:
    mode = image.mode
    if mode == "I" or mode.startswith("I;16"):
        return _from_integers(image, name=name)
    if mode == "F":
        return picture_from_array(np.asarray(image), name=name)
    if mode == "LAB":
        return _from_lab(np.asarray(image))
    clear = mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info
    # Band by band: Pillow's conversions and copies would each take the whole picture once more.
    picture = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        band = image.crop((0, top, image.width, bottom)).convert("RGBA" if clear else "RGB")
        picture[top:bottom] = picture_from_array(np.asarray(band), name=name)
    return picture


def _from_integers(image: PILImage, *, name: str) -> RGBArray:
    """Grey of more than 8 bits: scaled by what white is in the file, never clipped."""
    tags: Any = getattr(image, "tag_v2", {})
    bits = min(tags.get(_BITS) or (16,))
    signed = min(tags.get(_SAMPLE_FORMAT) or (1,)) == 2
    values: NDArray[Any] = np.asarray(image)
    if bits > 16:
        # Files of 32-bit integers have no common white; most hold 16-bit values.
        values = np.clip(values, 0, None).astype(np.uint32) if signed else values.view(np.uint32)
        white = max(int(values.max()), 0xFFFF)
    else:
        white = (1 << (bits - signed)) - 1
        values = np.clip(values, 0, white).astype(np.uint16)
    if tags.get(_PHOTOMETRIC) == 0:  # white is zero: Pillow turns that round for 8 bits only
        values = (white - np.minimum(values, white)).astype(values.dtype)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        opaque = np.where(values == clear, 0, white).astype(values.dtype)
        values = np.dstack([values, opaque])
    return picture_from_array(values, name=name, full=white)


def _from_lab(lab: NDArray[np.uint8]) -> RGBArray:
    import cv2

    # TIFF stores a and b signed; OpenCV's 8-bit form is offset by 128.
    shifted = lab.copy()
    shifted[..., 1:] = lab[..., 1:] ^ 0x80
    return np.asarray(cv2.cvtColor(shifted, cv2.COLOR_LAB2RGB), np.uint8)
