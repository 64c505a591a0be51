"""Aligned faces as bytes: PNG, since a lossy chip would embed to another vector."""

from __future__ import annotations

import cv2
import numpy as np

from facefleet.errors import GalleryCorruptError
from facefleet.types import U8Array


def encode_chip(chip: U8Array) -> bytes:
    """PNG of an (h, w, 3) uint8 RGB face."""
    good, data = cv2.imencode(".png", np.ascontiguousarray(chip[:, :, ::-1]))
    assert good
    return data.tobytes()


def decode_chip(data: bytes) -> U8Array:
    """The (h, w, 3) uint8 RGB face of a PNG.

    Raises:
        GalleryCorruptError: It is none.
    """
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise GalleryCorruptError("a stored chip is damaged", hint="run `facefleet gallery check`")
    return np.ascontiguousarray(pixels[:, :, ::-1]).astype(np.uint8, copy=False)
