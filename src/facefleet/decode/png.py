"""The chunks of a PNG: where its orientation may stand, and whether the file ends early.

Walked here because Pillow decodes the whole picture to find Exif data behind it. Specifications: PNG (third edition),
section 11; for Exif in text chunks, the "Raw profile" that ImageMagick and ExifTool write. Pure; any thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from facefleet.decode.exif import exif_orientation, xmp_orientation

_MAX_CHUNKS = 100_000
_MAX_TEXT_BYTES = 1 << 20
_XMP = b"XML:com.adobe.xmp"
_RAW = (b"Raw profile type exif", b"Raw profile type APP1")


def ends_early(data: bytes) -> bool:
    """Whether the file is cut off; False where it is merely damaged."""
    position = 8
    for kind, body in _chunks(data):
        if not kind.isalpha():
            return False
        position = body.stop + 4
        if kind == b"IEND":
            break
    else:
        position += 8  # what follows the last whole chunk is not even the head of one
    return position > len(data)


def orientation(data: bytes) -> int:
    """The orientation, 1 to 8, from an eXIf chunk, Exif in text, or XMP, in that order; 1 where there is none."""
    found: dict[str, int | None] = {}
    for kind, body in _chunks(data):
        if kind == b"eXIf":
            found.setdefault("exif", exif_orientation(data[body.start : body.stop].removeprefix(b"Exif\x00\x00")))
        elif kind in (b"iTXt", b"zTXt", b"tEXt"):
            keyword, text = _text(kind, data[body.start : body.stop])
            if keyword == _XMP:
                found.setdefault("xmp", xmp_orientation(text))
            elif keyword in _RAW:
                found.setdefault("raw", _from_raw_profile(text))
    return found.get("exif") or found.get("raw") or found.get("xmp") or 1


def _chunks(data: bytes) -> Iterator[tuple[bytes, range]]:
    """Kind and extent of each chunk, the last of which may reach past the end."""
    position = 8
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, position)
        yield kind, range(position + 8, position + 8 + length)
        position += 12 + length


def _text(kind: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Keyword and text of a text chunk; text of unreasonable size is cut."""
    keyword, _, rest = body.partition(b"\x00")
    if keyword != _XMP and keyword not in _RAW:
        return keyword, b""
    packed = kind == b"zTXt"
    if kind == b"iTXt":
        packed = rest[:1] == b"\x01"
        rest = rest[2:].split(b"\x00", 2)[-1]  # behind the language and the translated keyword
    elif packed:
        rest = rest[1:]
    if not packed:
        return keyword, rest[:_MAX_TEXT_BYTES]
    try:
        return keyword, zlib.decompressobj().decompress(rest, _MAX_TEXT_BYTES)
    except zlib.error:
        return keyword, b""


def _from_raw_profile(text: bytes) -> int | None:
    """Exif as hexadecimal lines, behind a blank line, the profile's name and its length."""
    try:
        exif = bytes.fromhex("".join(text.decode("ascii").split("\n")[3:]))
        return exif_orientation(exif.removeprefix(b"Exif\x00\x00"))
    except ValueError:
        return None
