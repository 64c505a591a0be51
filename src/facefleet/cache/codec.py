"""`Faces` as bytes and back: a JSON header, the arrays as they are, and a checksum; no pickle."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import CacheError
from facefleet.types import Faces, Quality

_ARRAYS = ("boxes", "landmarks", "scores", "embeddings", "norms", "status")
_QUALITY = ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg")
_DTYPES = ("<f4", "|u1", "<u1")


def pack_faces(faces: Faces) -> bytes:
    """All of `faces` but its name."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(faces, name) for name in _ARRAYS}
    arrays |= {name: getattr(faces.quality, name) for name in _QUALITY}
    if faces.chips is not None:
        arrays["chips"] = faces.chips
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    header = {
        "width": faces.width,
        "height": faces.height,
        "best_rejected": faces.best_rejected,
        "arrays": listed,
    }
    text = json.dumps(header).encode()
    body = b"".join([struct.pack("<I", len(text)), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())])
    return struct.pack("<I", zlib.crc32(body)) + body


def unpack_faces(data: bytes, name: str) -> Faces:
    """The faces of `pack_faces`, under another name.

    Raises:
        CacheError: The bytes are damaged.
    """
    if len(data) < 8 or struct.unpack_from("<I", data)[0] != zlib.crc32(data[4:]):
        raise CacheError("a cached result is damaged")
    (length,) = struct.unpack_from("<I", data, 4)
    header = json.loads(data[8 : 8 + length])
    place = 8 + length
    arrays: dict[str, NDArray[Any]] = {}
    for key, dtype, shape in header["arrays"]:
        if dtype not in _DTYPES:
            raise CacheError(f"a cached result has arrays of {dtype}")
        count = int(np.prod(shape))
        arrays[key] = np.frombuffer(data, dtype, count, place).reshape(shape).copy()
        place += arrays[key].nbytes
    return Faces(
        name=name,
        width=header["width"],
        height=header["height"],
        boxes=arrays["boxes"],
        landmarks=arrays["landmarks"],
        scores=arrays["scores"],
        embeddings=arrays["embeddings"],
        norms=arrays["norms"],
        status=arrays["status"],
        quality=Quality(**{key: arrays[key] for key in _QUALITY}),
        best_rejected=header["best_rejected"],
        chips=arrays.get("chips"),
    )
