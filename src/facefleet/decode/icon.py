"""Icons: picks the picture to read and finds out its true size, which the directory of an icon need not tell.

Specification: the ICO directory (6 + 16 n bytes), whose entries are PNG files or Windows bitmaps of doubled height.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from facefleet.errors import CorruptImageError, TruncatedImageError

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Icon:
    """One picture of an icon file.

    Attributes:
        width: Width in pixels by its own header.
        height: Height.
        data: An icon file with this picture only.
    """

    width: int
    height: int
    data: bytes


def largest(data: bytes, *, name: str) -> Icon:
    """The largest picture of an icon file; the deepest of several.

    Raises:
        CorruptImageError: There is none, or it gives no size.
        TruncatedImageError: It lies behind the end.
    """
    try:
        (count,) = struct.unpack_from("<H", data, 4)
        entries = [struct.unpack_from("<BBBBHHII", data, 6 + 16 * i) for i in range(count)]
        entry = max(entries, key=lambda e: ((e[0] or 256) * (e[1] or 256), e[5]))
        start, end = entry[7], entry[7] + entry[6]
        blob = data[start:end]
        if end > len(data):
            raise TruncatedImageError(f"{name}: the icon ends too early", hint="get it again")
        if blob.startswith(_PNG):
            width, height = struct.unpack_from(">II", blob, 16)
        else:
            (kind,) = struct.unpack_from("<I", blob, 0)
            width, height = struct.unpack_from("<HH" if kind == 12 else "<ii", blob, 4)
            height = abs(height) // 2
    except (struct.error, ValueError) as error:
        raise CorruptImageError(f"{name}: an icon without a picture", hint="the file is damaged") from error
    if width < 1 or height < 1:
        raise CorruptImageError(f"{name}: an icon without a size", hint="the file is damaged")
    # One byte a side: what the directory says is only used to find the entry again.
    head = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", *entry[:6], len(blob), 22)
    return Icon(width, height, head + blob)
