"""Every format but plain JPEG, through Pillow; its exceptions are mapped here and nowhere else.

Plugins are called by the format that the magic bytes gave, so that nothing is guessed twice and Pillow's global size
limit, which would warn on stderr, gives way to the decoder's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from facefleet.decode.arrays import picture_from_array
from facefleet.decode.formats import PILLOW, missing, supported_formats
from facefleet.errors import CorruptImageError, FacefleetError, ImageTooLargeError, TruncatedImageError, UnsupportedFormatError
from facefleet.types import RGBArray

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

_ORIENTATION = 0x0112

def quiet() -> None:
    """Keep Pillow's remarks on odd metadata off stderr: they concern nothing that is read here."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    logger = logging.getLogger("PIL")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


@lru_cache(maxsize=1)
def _quiet_libtiff() -> None:
    """Take the error handler of Pillow's libtiff away: it writes to stderr, and Pillow has no switch for it."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for path in {line.split(maxsplit=5)[-1] for line in lines if "libtiff" in line}:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                getattr(library, name).argtypes = [ctypes.c_void_p]
                getattr(library, name).restype = ctypes.c_void_p
                getattr(library, name)(None)


def open_header(data: bytes, format_name: str, *, name: str) -> PILImage:
    """Open a picture without decoding it.

    Raises:
        UnsupportedFormatError: This install does not read the format, or this variant of it.
        CorruptImageError: The header makes no sense.
        TruncatedImageError: It ends too early.
    """
    if not supported_formats()[format_name]:
        raise missing(format_name, name=name)
    from PIL import Image

    Image.init()
    if format_name == "tiff":
        _quiet_libtiff()
    if format_name == "heic":
        import pillow_heif

        if PILLOW[format_name] not in Image.OPEN:
            pillow_heif.register_heif_opener()
    factory, _ = Image.OPEN[PILLOW[format_name]]
    try:
        image: PILImage = factory(io.BytesIO(data), name)
    except Exception as error:  # damaged bytes make plugins raise anything at all
        raise mapped(error, name=name) from error
    if image.width < 1 or image.height < 1:
        raise CorruptImageError(f"{name}: the header gives no size", hint="the file is damaged; get it again")
    return image


def orientation_of(image: PILImage) -> int:
    """The Exif orientation of an opened picture that its pixels still need; 1 where there is none."""
    try:
        value = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata is no reason to refuse a picture
        return 1
    return value if 1 <= value <= 8 else 1


def pixels_of(image: PILImage, *, name: str, read_truncated: bool) -> RGBArray:
    """Decode an opened picture.

    Args:
        image: From `open_header`, or any PIL image.
        name: What to call it in errors.
        read_truncated: Whether to take what there is of a file that ends early.

    Returns:
        (h, w, 3) uint8 RGB, not rotated.

    Raises:
        TruncatedImageError: The bytes end early.
        CorruptImageError: They are damaged.
    """
    try:
        image.load()
    except Exception as error:  # damaged bytes make plugins raise anything at all
        failure = mapped(error, name=name)
        if not (read_truncated and isinstance(failure, TruncatedImageError) and getattr(image, "_im", None)):
            raise failure from error
        image.tile = []  # type: ignore[attr-defined]  # what was decoded before the end is in place
    try:
        return _to_rgb(image, name=name)
    except Exception as error:  # damaged bytes make plugins raise anything at all
        raise mapped(error, name=name) from error


def mapped(error: BaseException, *, name: str) -> FacefleetError:
    """The typed error for what Pillow raised."""
    from PIL.Image import DecompressionBombError

    if isinstance(error, FacefleetError):
        return error
    if isinstance(error, DecompressionBombError):
        return ImageTooLargeError(f"{name}: {error}", hint="Pillow refuses frames of this size")
    text = f"{type(error).__name__}: {error}"
    lower = text.lower()
    if "truncated" in lower or "not enough data" in lower or isinstance(error, EOFError):
        return TruncatedImageError(
            f"{name}: the file ends too early ({text})", hint="get it again, or use decode.truncated=read"
        )
    if "unsupported" in lower or "not supported" in lower or isinstance(error, NotImplementedError):
        return UnsupportedFormatError(f"{name}: {text}", hint="convert it to a plain PNG or JPEG")
    return CorruptImageError(f"{name}: cannot be decoded ({text})", hint="the file is damaged; get it again")


def _to_rgb(image: PILImage, *, name: str) -> RGBArray:
    mode = image.mode
    if mode.startswith("I;16"):
        return picture_from_array(np.asarray(image).astype(np.uint16), name=name)
    if mode == "I":
        # Pillow's 32-bit mode stands for 16-bit samples in every format that is read here.
        return picture_from_array(np.clip(np.asarray(image), 0, 65535).astype(np.uint16), name=name)
    if mode == "F":
        return picture_from_array(np.asarray(image), name=name)
    if mode == "LAB":
        return _from_lab(np.asarray(image))
    if mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return picture_from_array(np.asarray(image.convert("RGBA")), name=name)
    return np.ascontiguousarray(np.asarray(image.convert("RGB")))


def _from_lab(lab: np.ndarray) -> RGBArray:
    import cv2

    # TIFF stores a and b signed; OpenCV's 8-bit form is offset by 128.
    shifted = lab.copy()
    shifted[..., 1:] = lab[..., 1:] ^ 0x80
    return np.asarray(cv2.cvtColor(shifted, cv2.COLOR_LAB2RGB), np.uint8)
