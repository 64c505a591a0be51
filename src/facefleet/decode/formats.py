"""Which format bytes are, from their first bytes alone, and which formats this install reads.

Names never count: a PNG called ``.jpg`` is a PNG.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

from facefleet.errors import EmptyInputError, UnsupportedFormatError

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8", "jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (0, b"BM", "bmp"),
    (0, b"II*\x00", "tiff"),
    (0, b"MM\x00*", "tiff"),
    (0, b"II+\x00", "tiff"),
    (0, b"MM\x00+", "tiff"),
    (0, b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jpeg2000"),
    (0, b"\xff\x4f\xff\x51", "jpeg2000"),
    (0, b"\x00\x00\x01\x00", "ico"),
    (0, b"qoif", "qoi"),
)
_BRANDS = {  # ISO base media: the major brand, or one of the compatible ones, names the codec
    "avif": (b"avif", b"avis"),
    "heic": (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"),
}
PILLOW = {
    "jpeg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "webp": "WEBP",
    "tiff": "TIFF",
    "jpeg2000": "JPEG2000",
    "ico": "ICO",
    "qoi": "QOI",
    "pnm": "PPM",
    "avif": "AVIF",
    "heic": "HEIF",
}
"""Formats and the names Pillow has for them."""


def sniff(data: bytes, *, name: str) -> str:
    """The format of `data`.

    Raises:
        EmptyInputError: There are no bytes.
        UnsupportedFormatError: The first bytes are of no format that facefleet knows.
    """
    if not data:
        raise EmptyInputError(f"{name}: no bytes", hint="the file is empty; was the upload or copy cut off?")
    for offset, magic, found in _MAGIC:
        if data.startswith(magic, offset):
            return found
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        brands = data[8 : max(12, min(int.from_bytes(data[:4], "big"), 64))]
        for found, known in _BRANDS.items():
            if any(brands[i : i + 4] in known for i in range(0, len(brands), 4)):
                return found
    if data[:1] == b"P" and data[1:2] in b"1234567Ff" and data[2:3] in b" \t\r\n#":
        return "pnm"
    readable = ", ".join(found for found, here in supported_formats().items() if here)
    raise UnsupportedFormatError(
        f"{name}: not a picture format known here (first bytes {data[:8].hex(' ')})",
        hint=f"this install reads {readable}",
    )


@lru_cache(maxsize=1)
def _read_here() -> tuple[tuple[str, bool], ...]:
    from PIL import features

    here = {
        "webp": bool(features.check("webp")),
        "avif": bool(features.check("avif")),
        "jpeg2000": bool(features.check("jpg_2000")),
        "heic": importlib.util.find_spec("pillow_heif") is not None,
    }
    return tuple((name, here.get(name, True)) for name in PILLOW)


def supported_formats() -> dict[str, bool]:
    """Every format facefleet knows, and whether this install reads it."""
    return dict(_read_here())


def missing(format_name: str, *, name: str) -> UnsupportedFormatError:
    """The error for a format that this install does not read."""
    hint = 'pip install "facefleet[heif]"' if format_name == "heic" else "install a Pillow wheel that has it"
    return UnsupportedFormatError(f"{name}: this install does not read {format_name}", hint=hint)
