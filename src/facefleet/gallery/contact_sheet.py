"""Contact sheets: rows of faces with captions in one picture, to look at what a search or a clustering found.

Owns the drawing. Faces are cut out of their pictures again, or come as chips that were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from facefleet.decode import Decoder
from facefleet.errors import FacefleetError, GalleryWriteError
from facefleet.ops import alignment_matrices, box_matrices, warp_chips
from facefleet.types import F32Array, ImageSource, U8Array

_SIDE_PX = 112
_CAPTION_PX = 18
_GAP_PX = 6
_MOST_COLUMNS = 12
_FORMATS = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True)
class Tile:
    """One face of a sheet.

    Attributes:
        pixels: (112, 112, 3) uint8 RGB; None: nothing could be cut out, a grey square stands for it.
        caption: Drawn below; what the font does not have becomes a question mark.
        marked: Whether it has a green frame.
    """

    pixels: U8Array | None
    caption: str
    marked: bool = False


def cut_face(
    decoder: Decoder, picture: ImageSource, box: F32Array | None, landmarks: F32Array | None
) -> U8Array | None:
    """The aligned face of a picture, by landmarks or else by box; None where the picture cannot be read."""
    try:
        image = decoder.decode(picture)
    except FacefleetError:
        return None
    matrices = usable = None
    if landmarks is not None and np.isfinite(landmarks).all():
        matrices, usable = alignment_matrices(landmarks[None].astype(np.float32))
    elif box is not None and np.isfinite(box).all():
        matrices, usable = box_matrices(np.asarray(box, np.float32)[None])
    if matrices is None or usable is None or not usable[0]:
        return None
    return np.asarray(warp_chips(image.pixels, matrices, usable, image.scale)[0])


def write_sheet(path: Path, rows: Iterable[Sequence[Tile]]) -> None:
    """Draw rows of faces; long rows go on in the next line.

    Args:
        path: PNG, JPEG or WebP by its name; PNG otherwise.
        rows: Faces.

    Raises:
        GalleryWriteError: The file cannot be written.
    """
    lines = [row[start : start + _MOST_COLUMNS] for row in rows for start in range(0, max(len(row), 1), _MOST_COLUMNS)]
    columns = max((len(line) for line in lines), default=1) or 1
    cell = (_SIDE_PX + _CAPTION_PX + _GAP_PX, _SIDE_PX + _GAP_PX)
    canvas = np.full((len(lines) * cell[0] + _GAP_PX, columns * cell[1] + _GAP_PX, 3), 255, np.uint8)
    for y, line in enumerate(lines):
        for x, tile in enumerate(line):
            top, left = _GAP_PX + y * cell[0], _GAP_PX + x * cell[1]
            face = np.full((_SIDE_PX, _SIDE_PX, 3), 200, np.uint8) if tile.pixels is None else tile.pixels
            canvas[top : top + _SIDE_PX, left : left + _SIDE_PX] = cv2.resize(face, (_SIDE_PX, _SIDE_PX))
            if tile.marked:
                corner = (left + _SIDE_PX - 1, top + _SIDE_PX - 1)
                cv2.rectangle(canvas, (left, top), corner, (0, 170, 0), 2)
            place = (left, top + _SIDE_PX + 12)
            cv2.putText(canvas, _short(tile.caption), place, cv2.FONT_HERSHEY_SIMPLEX, 0.36, (0, 0, 0), 1, cv2.LINE_AA)
    suffix = path.suffix.lower() if path.suffix.lower() in _FORMATS else ".png"
    good, data = cv2.imencode(suffix, canvas[:, :, ::-1])
    assert good
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise GalleryWriteError(f"{path}: {error}", hint="check the folder") from error


def _short(caption: str) -> str:
    text = caption.encode("ascii", "replace").decode()
    return text if len(text) <= 18 else text[:16] + ".."
