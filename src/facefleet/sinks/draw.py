"""Faces drawn into a picture: boxes, landmarks, scores. Pure functions on arrays, safe in any thread."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from facefleet.types import Faces, RGBArray

_GREEN, _YELLOW, _RED, _BLACK = (40, 220, 60), (250, 210, 40), (235, 60, 50), (0, 0, 0)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_UNIT_PX = 900
_SMALL_PX = 320


def draw_faces(
    pixels: RGBArray, faces: Faces, *, labels: Sequence[str] | None = None, highlight: int | None = None
) -> RGBArray:
    """Draw every face of a picture.

    Args:
        pixels: (h, w, 3) uint8 RGB, upright and at full resolution, as boxes refer to; left as it is.
        faces: The faces. Those that could not be aligned are red.
        labels: ASCII text for each; default: its score.
        highlight: One face to set off from the others.

    Returns:
        A new array of the same shape. Lines and letters grow with the picture.
    """
    canvas = np.ascontiguousarray(pixels).copy()
    unit = max(1.0, max(canvas.shape[:2]) / _UNIT_PX)
    line = max(1, round(1.6 * unit)) if max(canvas.shape[:2]) > _SMALL_PX else 1
    for face in faces:
        color = _RED if face.status != 0 else _YELLOW if highlight == face.index else _GREEN
        x1, y1, x2, y2 = (int(value) for value in faces.boxes_int[face.index])
        if line > 1:  # a dark edge, to be seen on any background
            cv2.rectangle(canvas, (x1, y1), (x2 - 1, y2 - 1), _BLACK, 2 * line)
        cv2.rectangle(canvas, (x1, y1), (x2 - 1, y2 - 1), color, line)
        if np.isfinite(face.landmarks).all():
            _points(canvas, face.landmarks, color, max(1, round(1.8 * unit)) if line > 1 else 0)
        _label(canvas, labels[face.index] if labels else f"{face.score:.2f}", (x1, y1, x2, y2), color, unit)
    return canvas


def _points(canvas: RGBArray, points: np.ndarray, color: tuple[int, int, int], radius: int) -> None:
    for x, y in points:
        center = (round(float(x)), round(float(y)))
        if radius:
            cv2.circle(canvas, center, radius + max(1, radius // 2), _BLACK, -1, cv2.LINE_AA)
        cv2.circle(canvas, center, radius, color, -1, cv2.LINE_AA if radius else cv2.LINE_8)


def _label(
    canvas: RGBArray, text: str, box: tuple[int, int, int, int], color: tuple[int, int, int], unit: float
) -> None:
    """Text on a filled box above the face, or below, or inside a face that is large enough; else there is none."""
    size, weight = (0.45 if max(canvas.shape[:2]) > _SMALL_PX else 0.3) * unit, max(1, round(unit))
    (width, height), base = cv2.getTextSize(text, _FONT, size, weight)
    full = height + base + weight
    x1, y1, _, y2 = box
    if y1 >= full:
        top = y1 - full
    elif y2 + full <= canvas.shape[0]:
        top = y2
    elif y2 - y1 > 4 * full:
        top = y1
    else:
        return
    left = max(0, min(x1, canvas.shape[1] - width))
    if left + width <= canvas.shape[1]:
        cv2.rectangle(canvas, (left, top), (left + width - 1, top + full - 1), color, -1)
        baseline = top + height + (full - height) // 2
        cv2.putText(canvas, text, (left, baseline), _FONT, size, _BLACK, weight, cv2.LINE_AA)
