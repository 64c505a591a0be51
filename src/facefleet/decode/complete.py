"""Whether a file ends before its container says so: tells a file that was cut off from one that is damaged.

Asked only after a decoder has given up, except for JPEG, whose decoder never does. Pure; any thread.
"""

from __future__ import annotations

import struct

from facefleet.decode import png

_MAX_CHUNKS = 100_000


def ends_early(data: bytes, format_name: str) -> bool:
    """Whether `data` is shorter than its own structure; False where the format does not tell."""
    check = {
        "png": png.ends_early,
        "webp": _webp,
        "tiff": _tiff,
        "jpeg2000": _jpeg2000,
        "qoi": _qoi,
        "avif": _boxes,
        "heic": _boxes,
    }.get(format_name)
    try:
        return check is not None and check(data)
    except struct.error:  # the structure itself is cut
        return True


def _webp(data: bytes) -> bool:
    return bool(len(data) < 8 + struct.unpack_from("<I", data, 4)[0])


def _jpeg2000(data: bytes) -> bool:
    # T.800, annex A: no packet holds two bytes above FF8F, so FFD9 is the end of the codestream.
    return data.rfind(b"\xff\xd9") < data.find(b"\xff\x4f\xff\x51") or b"\xff\x4f\xff\x51" not in data


def _qoi(data: bytes) -> bool:
    return data.find(b"\x00" * 7 + b"\x01", 14) < 0


def _boxes(data: bytes) -> bool:
    """Top-level boxes of ISO/IEC 14496-12, section 4.2."""
    position = 0
    for _ in range(_MAX_CHUNKS):
        if position == len(data):
            return False
        (size,) = struct.unpack_from(">I", data, position)
        if size == 0:  # up to the end, wherever that is
            return False
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, position + 8)
        position += max(size, 8)
        if position > len(data):
            return True
    return False


def _tiff(data: bytes) -> bool:
    """Whether the first directory of a classic TIFF, or a strip or tile that it names, lies behind the end."""
    order = "<" if data[:2] == b"II" else ">"
    if data[2:4] not in (b"*\x00", b"\x00*"):
        return False
    (first,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, first)
    found: dict[int, tuple[int, ...]] = {}
    for i in range(entries):
        tag, kind, count = struct.unpack_from(order + "HHI", data, first + 2 + 12 * i)
        if tag in (273, 279, 324, 325) and kind in (3, 4) and count <= _MAX_CHUNKS:
            layout = order + str(count) + ("H" if kind == 3 else "I")
            at = first + 2 + 12 * i + 8
            if struct.calcsize(layout) > 4:
                (at,) = struct.unpack_from(order + "I", data, at)
            found[tag] = struct.unpack_from(layout, data, at)
    for offsets, sizes in ((273, 279), (324, 325)):
        pairs = zip(found.get(offsets, ()), found.get(sizes, ()), strict=False)
        if any(offset + size > len(data) for offset, size in pairs):
            return True
    return False
