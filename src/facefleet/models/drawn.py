"""Faces drawn by program: pictures on which detectors and embedders can be tried where no photo is at hand.

Pure functions; the same arguments give the same pixels. SCRFD, YuNet and RetinaFace find these faces.
"""

from __future__ import annotations

import cv2
import numpy as np

from facefleet.types import RGBArray, U8Array

_UNIT_PX = 112  # the drawing is laid out on the alignment template
_FINE = 4  # drawn this many times larger, then reduced: smooth edges
_PLACES = (
    (0.06, 0.06, 0.35),
    (0.50, 0.05, 0.18),
    (0.72, 0.09, 0.23),
    (0.10, 0.52, 0.13),
    (0.31, 0.52, 0.41),
    (0.78, 0.62, 0.18),
)


def drawn_face(side: int, *, seed: int) -> RGBArray:
    """A face on a plain ground.

    Args:
        side: Height and width in pixels.
        seed: Different seeds give different skin, hair and ground.

    Returns:
        (side, side, 3) uint8 RGB; eyes and mouth lie where the 112 x 112 template has them.
    """
    random = np.random.default_rng(seed)
    zoom = side * _FINE / _UNIT_PX
    skin = np.array([200, 160, 135]) + random.integers(-30, 25, 3)
    hair = np.array([60, 40, 30]) + random.integers(0, 60)
    canvas = np.empty((side * _FINE, side * _FINE, 3), np.uint8)
    canvas[:] = 90 + random.integers(0, 80, 3)

    def oval(
        x: float, y: float, a: float, b: float, color: object, arc: tuple[int, int] = (0, 360), line: float = 0
    ) -> None:
        rgb = tuple(int(value) for value in np.clip(np.asarray(color, float), 0, 255))
        center, axes = (round(x * zoom), round(y * zoom)), (round(a * zoom), round(b * zoom))
        cv2.ellipse(canvas, center, axes, 0, *arc, rgb, max(1, round(line * zoom)) if line else -1)

    oval(56, 52, 44, 52, hair)
    oval(56, 100, 22, 30, skin * 0.85)
    oval(56, 66, 36, 48, skin)
    oval(56, 30, 34, 16, hair)
    for x in (38.3, 73.5):
        oval(x, 43, 9, 2, hair * 0.8, (180, 360), 3)
        oval(x, 51.7, 7.5, 4.2, (245, 245, 245))
        oval(x, 51.7, 3.6, 3.8, (70, 50, 40))
        oval(x, 51.7, 1.6, 1.8, (10, 10, 10))
        oval(x, 50, 8, 4, skin * 0.6, (180, 360), 1.2)
    oval(56, 64, 4, 10, skin * 0.93)
    oval(52.5, 72, 2, 1.5, skin * 0.5)
    oval(59.5, 72, 2, 1.5, skin * 0.5)
    oval(56, 70, 7, 4, skin * 0.75, (20, 160), 1)
    oval(56, 92, 14.5, 4.5, (170, 80, 80))
    oval(56, 92, 14.5, 1, (90, 40, 40))
    light = np.linspace(1.12, 0.8, side * _FINE)[None, :, None]
    lit = np.clip(canvas * light, 0, 255).astype(np.uint8)
    small = cv2.resize(lit, (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.GaussianBlur(small, (0, 0), 0.8 * side / _UNIT_PX), np.uint8)


def drawn_scene(height: int, width: int) -> RGBArray:
    """Six faces of different sizes on grey, (height, width, 3) uint8 RGB."""
    canvas = np.full((height, width, 3), 120, np.uint8)
    short = min(height, width)
    for seed, (x, y, size) in enumerate(_PLACES):
        side = max(16, int(size * short))
        left, top = int(x * short), int(y * short)
        canvas[top : top + side, left : left + side] = drawn_face(side, seed=seed)
    return canvas


def drawn_chips(count: int, height: int = 112, width: int = 112) -> U8Array:
    """`count` different aligned faces, (count, height, width, 3) uint8 RGB."""
    faces = np.stack([drawn_face(_UNIT_PX, seed=seed) for seed in range(count)])
    top, left = (_UNIT_PX - height) // 2, (_UNIT_PX - width) // 2
    return np.ascontiguousarray(faces[:, top : top + height, left : left + width])
