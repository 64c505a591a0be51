"""Where faces will be: a Kalman filter of constant velocity for each, all of them at once.

Source: Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960; its use on boxes follows Bewley
et al., "Simple Online and Realtime Tracking" (SORT), ICIP 2016. Here the four numbers of a box (center x, center y,
width, height) are filtered apart, each with its velocity, and noise grows with the face's size, so that one setting
serves near and far faces; time is in seconds, so that sampling need not be even.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facefleet.types import F32Array

F64 = NDArray[np.float64]

_MEASURE, _START_SPEED, _PUSH = 0.05, 2.0, 3.0  # of the face's size: pixels, pixels/s, pixels/s per root second


class Motion:
    """States of n faces.

    Attributes:
        position: (n, 4) float64: center x, center y, width, height in pixels.
        speed: (n, 4) float64, per second.
        cov: (n, 4, 3) float64: variance of position, covariance, variance of speed.
    """

    def __init__(self) -> None:
        self.position: F64 = np.empty((0, 4))
        self.speed: F64 = np.empty((0, 4))
        self.cov: F64 = np.empty((0, 4, 3))

    def add(self, boxes: F32Array) -> None:
        """Append faces at rest, from (m, 4) x1 y1 x2 y2."""
        position = _to_center(boxes)
        size = _size(position)
        cov = np.zeros((len(boxes), 4, 3))
        cov[:, :, 0] = (_MEASURE * size) ** 2
        cov[:, :, 2] = (_START_SPEED * size) ** 2
        self.position = np.concatenate([self.position, position])
        self.speed = np.concatenate([self.speed, np.zeros_like(position)])
        self.cov = np.concatenate([self.cov, cov])

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drop the faces where `which` is false."""
        self.position, self.speed, self.cov = self.position[which], self.speed[which], self.cov[which]

    def predict(self, seconds: float) -> None:
        """Move on in time. Prediction step, equations 1 and 2 of Welch and Bishop's introduction (TR 95-041)."""
        p, c, v = np.moveaxis(self.cov, 2, 0)
        push = (_PUSH * _size(self.position)) ** 2
        self.position = self.position + self.speed * seconds
        self.position[:, 2:] = np.maximum(self.position[:, 2:], 1.0)
        self.cov = np.stack(
            [
                p + 2 * c * seconds + v * seconds**2 + push * seconds**3 / 3,
                c + v * seconds + push * seconds**2 / 2,
                v + push * seconds,
            ],
            axis=2,
        )

    def update(self, rows: NDArray[np.intp], boxes: F32Array) -> None:
        """Correct the faces `rows` by (m, 4) x1 y1 x2 y2. Update step, equations 3 to 5 of the same."""
        measured = _to_center(boxes)
        p, c, v = np.moveaxis(self.cov[rows], 2, 0)
        noise = (_MEASURE * _size(measured)) ** 2
        gain, gain_speed = p / (p + noise), c / (p + noise)
        miss = measured - self.position[rows]
        self.position[rows] += gain * miss
        self.speed[rows] += gain_speed * miss
        self.cov[rows] = np.stack([(1 - gain) * p, (1 - gain) * c, v - gain_speed * c], axis=2)

    @property
    def boxes(self) -> F32Array:
        """(n, 4) float32 x1 y1 x2 y2."""
        half = self.position[:, 2:] / 2
        center = self.position[:, :2]
        return np.concatenate([center - half, center + half], axis=1).astype(np.float32)


def _to_center(boxes: F32Array) -> F64:
    low, high = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _size(position: F64) -> F64:
    return np.sqrt(np.maximum(position[:, 2] * position[:, 3], 1.0))[:, None]
