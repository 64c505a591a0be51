"""Checksums of stored rows: SQLite keeps none, and a flipped bit must never become another person's name.

CRC-32 finds every error of up to 32 neighboring bits, so every damaged byte. It binds a vector to its ids, too.
"""

from __future__ import annotations

import struct
import zlib


def row_checksum(*parts: int | float | str | bytes | None) -> int:
    """CRC-32 of values with their lengths and kinds, so that no two different rows are joined to the same bytes."""
    state = 0
    for part in parts:
        if part is None:
            kind, data = b"n", b""
        elif isinstance(part, int):
            kind, data = b"i", struct.pack("<q", part)
        elif isinstance(part, float):
            kind, data = b"f", struct.pack("<d", part)
        elif isinstance(part, str):
            kind, data = b"t", part.encode("utf-8", "surrogatepass")
        else:
            kind, data = b"b", part
        state = zlib.crc32(data, zlib.crc32(kind + struct.pack("<q", len(data)), state))
    return state
