"""Pictures on their way in: encoded bytes, and the upright RGB array that every stage works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from facefleet.types.arrays import RGBArray, expect

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A picture as bytes, not looked at yet.

    Attributes:
        data: The file's bytes.
        name: What to call it in errors and results (a path, an archive member, a request id).
    """

    data: bytes = field(repr=False)
    name: str = "<bytes>"


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded picture.

    Attributes:
        pixels: (h, w, 3) uint8, RGB, upright, C-contiguous. May be smaller than the original when a JPEG was
            decoded at a reduced scale; `scale` then says by how much.
        width: Width of the upright original in pixels: the frame that boxes refer to.
        height: Height of the upright original in pixels.
        name: Where it came from.
        format: The format found by its magic bytes, e.g. ``jpeg``; ``array`` for arrays.
        scale: Pixels of `pixels` per pixel of the original, both axes; 1.0 at full resolution. A point of the
            original at (x, y), pixel centers at integers, lies at ((x + 0.5) * scale - 0.5, ...) in `pixels`.
    """

    pixels: RGBArray = field(repr=False)
    width: int
    height: int
    name: str = "<array>"
    format: str = "array"
    scale: float = 1.0

    def __post_init__(self) -> None:
        expect("Image.pixels", self.pixels, (None, None, 3), np.uint8)

    @property
    def reduced(self) -> bool:
        """Whether `pixels` is smaller than the original."""
        return self.scale < 1.0


@dataclass(frozen=True, slots=True)
class DeferredImage:
    """A picture whose bytes are read when a decoder gets to it, so that waiting items take no memory.

    Attributes:
        name: What to call it.
        load: Reads the bytes; its OSError becomes a `SourceError` of this item alone. Called in a decode thread.
        size_bytes: About how many bytes `load` will return, for bounded queues; 0 if not known.
    """

    name: str
    load: Callable[[], bytes] = field(repr=False)
    size_bytes: int = 0


ImageSource: TypeAlias = (
    "str | PathLike[str] | bytes | bytearray | memoryview"
    " | NDArray[Any] | PILImage | EncodedImage | DeferredImage | Image"
)
"""Everything the decoder takes: a path, bytes, an (h, w[, c]) array (RGB order), a PIL image, or a typed picture."""
