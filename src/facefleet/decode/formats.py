"""Which format bytes are, from the bytes alone, and which formats this install reads.

Names never count: a PNG called ``.jpg`` is a PNG. Formats that hold no photos (EPS, PDF, FITS, ...) are refused here,
so that no decoder of theirs ever sees a byte. Pure; any thread.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

from facefleet.errors import EmptyInputError, UnsupportedFormatError

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"II+\x00", "tiff"),
    (b"MM\x00+", "tiff"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\x00\x00\x01\x00", "ico"),
    (b"qoif", "qoi"),
)
_BRANDS = {  # ISO base media: the major brand, or one of the compatible ones, names the codec
    "avif": (b"avif", b"avis"),
    "heic": (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"),
}
_TGA_FOOTER = b"TRUEVISION-XFILE.\x00"
_FORMATS = ("jpeg", "png", "gif", "bmp", "webp", "tiff", "jpeg2000", "ico", "qoi", "pnm", "tga", "avif", "heic")


def sniff(data: bytes, *, name: str) -> str:
    """The format of `data`.

    Args:
        data: The file; its first 64 bytes tell every format but TGA, whose mark is at its end.
        name: What to call it in errors.

    Raises:
        EmptyInputError: There are no bytes.
        UnsupportedFormatError: They are of no format that facefleet knows.
    """
    if not data:
        raise EmptyInputError(f"{name}: no bytes", hint="the file is empty; was the upload or copy cut off?")
    for magic, found in _MAGIC:
        if data.startswith(magic):
            return found
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        brands = data[8 : max(12, min(int.from_bytes(data[:4], "big"), 64))]
        for found, known in _BRANDS.items():
            if any(brands[i : i + 4] in known for i in range(0, len(brands), 4)):
                return found
    if data[:1] == b"P" and data[1:2] in b"123456f" and data[2:3] in b" \t\r\n#":
        return "pnm"
    if data.endswith(_TGA_FOOTER):
        return "tga"
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
    return tuple((name, here.get(name, True)) for name in _FORMATS)


def supported_formats() -> dict[str, bool]:
    """Every format facefleet knows, and whether this install reads it."""
    return dict(_read_here())


def missing(format_name: str, *, name: str) -> UnsupportedFormatError:
    """The error for a format that this install does not read."""
    hint = 'pip install "facefleet[heif]"' if format_name == "heic" else "install a Pillow wheel that has it"
    return UnsupportedFormatError(f"{name}: this install does not read {format_name}", hint=hint)
