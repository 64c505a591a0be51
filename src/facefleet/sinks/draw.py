"""Faces drawn into a picture: boxes, landmarks, scores. Pure functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from facefleet.types import Faces, RGBArray

_GREEN, _YELLOW, _RED, _BLACK = (40, 220, 60), (250, 210, 40), (235, 60, 50), (0, 0, 0)


def draw_faces(
    pixels: RGBArray, faces: Faces, *, labels: Sequence[str] | None = None, highlight: int | None = None
) -> RGBArray:
    """Draw every face of a picture.

    Args:
        pixels: (h, w, 3) uint8 RGB, upright and at full resolution, as boxes refer to; left as it is.
        faces: The faces.
        labels: Text for each; default: its score.
        highlight: One face to set off from the others.

    Returns:
        A new array of the same shape. Lines and letters grow with the picture.
    """
    canvas = np.ascontiguousarray(pixels).copy()
    unit = max(1.0, max(canvas.shape[:2]) / 900)
    line = max(1, round(1.6 * unit))
    for face in faces:
        color = _RED if face.status != 0 else _YELLOW if highlight == face.index else _GREEN
        x1, y1, x2, y2 = (int(value) for value in faces.boxes_int[face.index])
        cv2.rectangle(canvas, (x1, y1), (x2 - 1, y2 - 1), color, line, cv2.LINE_AA)
        if np.isfinite(face.landmarks).all():
            for x, y in face.landmarks:
                cv2.circle(
                    canvas, (round(float(x)), round(float(y))), max(1, round(1.8 * unit)), color, -1, cv2.LINE_AA
                )
        _label(canvas, labels[face.index] if labels else f"{face.score:.2f}", (x1, y1), color, unit)
    return canvas


def _label(canvas: RGBArray, text: str, corner: tuple[int, int], color: tuple[int, int, int], unit: float) -> None:
    """Text on a filled box above `corner`, moved inside the picture where there is no room."""
    scale, weight = 0.45 * unit, max(1, round(unit))
    (width, height), base = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, weight)
    x = max(0, min(corner[0], canvas.shape[1] - width))
    y = corner[1] - base if corner[1] - height - 2 * base >= 0 else corner[1] + height + base
    cv2.rectangle(canvas, (x, y - height - base), (x + width, y + base), color, -1)
    cv2.putText(canvas, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, _BLACK, weight, cv2.LINE_AA)
