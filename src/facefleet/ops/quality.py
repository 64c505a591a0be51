"""Cheap measures of how usable a face is: sharpness of its chip, head pose from five landmarks."""

from __future__ import annotations

import cv2
import numpy as np

from facefleet.types import BoolArray, F32Array, U8Array


def blur_scores(chips: U8Array, aligned: BoolArray) -> F32Array:
    """Variance of the Laplacian of each grey chip; low values mean blur.

    Source: Pertuz, Puig, Garcia, "Analysis of focus measure operators for shape-from-focus", Pattern Recognition
    46(5), 2013, operator LAPV.

    Args:
        chips: (n, h, w, 3) uint8 RGB.
        aligned: (n,) bool; other rows give NaN.

    Returns:
        (n,) float32.
    """
    out = np.full(len(chips), np.nan, np.float32)
    for i in np.flatnonzero(aligned):
        grey = cv2.cvtColor(chips[i], cv2.COLOR_RGB2GRAY)
        _, deviation = cv2.meanStdDev(cv2.Laplacian(grey, cv2.CV_16S))
        out[i] = deviation[0, 0] ** 2
    return out


def pose_degrees(landmarks: F32Array) -> tuple[F32Array, F32Array, F32Array]:
    """Rough head pose from eyes, nose and mouth corners.

    The nose tip stands out of the plane of eyes and mouth: seen from the front it lies midway between the eyes and
    about halfway down to the mouth, and it moves sideways with yaw and up or down with pitch by about the sine of
    the angle, times the distance between the eyes. A measure for sorting, not an angle to build on.

    Args:
        landmarks: (n, 5, 2) float32 pixels; NaN gives NaN.

    Returns:
        yaw, pitch and roll in degrees, each (n,) float32. Yaw is positive when the nose points to the right of the
        picture, pitch when it points down, roll when the face is turned clockwise in the picture.
    """
    points = landmarks.astype(np.float64)
    left, right, nose = points[:, 0], points[:, 1], points[:, 2]
    eyes, mouth = (left + right) / 2, (points[:, 3] + points[:, 4]) / 2
    across = right - left
    roll = np.arctan2(across[:, 1], across[:, 0])
    cos, sin = np.cos(-roll), np.sin(-roll)

    def upright(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return v[:, 0] * cos - v[:, 1] * sin, v[:, 0] * sin + v[:, 1] * cos

    with np.errstate(all="ignore"):
        center = (eyes + mouth) / 2
        nose_x, nose_y = upright(nose - center)
        _, length = upright(mouth - eyes)
        span = np.maximum(np.hypot(across[:, 0], across[:, 1]), np.abs(length))
        yaw = np.arcsin(np.clip(nose_x / (0.5 * span), -1, 1))
        pitch = np.arcsin(np.clip(nose_y / (0.5 * span), -1, 1))
    return tuple(np.degrees(angle).astype(np.float32) for angle in (yaw, pitch, roll))  # type: ignore[return-value]
