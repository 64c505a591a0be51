"""Align faces to the 112 x 112 ArcFace template by a least-squares similarity.

Source: S. Umeyama, "Least-squares estimation of transformation parameters between two point patterns", IEEE PAMI
13(4), 1991. In two dimensions the optimum of its equations (40) to (42) has a closed form: with both point sets
centered and written as complex numbers s and d, the rotation and scale are a = sum(conj(s) d) / sum(|s|^2), never a
reflection, and the translation maps one mean onto the other.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from facefleet.types import BoolArray, F32Array, RGBArray, U8Array

TEMPLATE_112: NDArray[np.float64] = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""(5, 2): left eye, right eye, nose, left and right mouth corner in the 112 x 112 chip, pixels."""

_TEMPLATE_MEAN = complex(*TEMPLATE_112.mean(axis=0))
_TEMPLATE_CENTERED = TEMPLATE_112.view(np.complex128)[:, 0] - _TEMPLATE_MEAN

SIDE_PX = 112
BOX_TO_CHIP = 1.5
"""Without landmarks a chip shows the box's longer side this many times over."""
SCALE_LIMITS = (1e-3, 1e3)
"""Transforms that shrink or enlarge more than this are not usable."""


def alignment_matrices(landmarks: F32Array) -> tuple[F32Array, BoolArray]:
    """Transforms that carry landmarks onto the template.

    Args:
        landmarks: (n, 5, 2) float32 pixels of the picture.

    Returns:
        (n, 2, 3) float32 transforms picture -> chip, NaN where there is none, and (n,) bool: landmarks are finite,
        not all in one place, and give a scale between 1/1000 and 1000.
    """
    finite = np.logical_and.reduce(np.isfinite(landmarks).reshape(-1, 10), axis=1)
    source = np.zeros((len(landmarks), 5, 2))
    np.copyto(source, landmarks, where=finite[:, None, None])
    points = source.view(np.complex128)[..., 0]
    mean = points.sum(axis=1) / 5
    s = points - mean[:, None]
    with np.errstate(all="ignore"):
        a = (s.conj() * _TEMPLATE_CENTERED).sum(axis=1) / (s.real**2 + s.imag**2).sum(axis=1)
        return _similarity(a, mean, _TEMPLATE_MEAN, finite)


def box_matrices(boxes: F32Array) -> tuple[F32Array, BoolArray]:
    """Transforms for detectors without landmarks: the box's center to the middle of the chip, upright.

    Args:
        boxes: (n, 4) float32 x1 y1 x2 y2.

    Returns:
        As `alignment_matrices`.
    """
    corners = boxes.astype(np.float64).reshape(-1, 2, 2)
    side = (corners[:, 1] - corners[:, 0]).max(axis=1) * BOX_TO_CHIP
    with np.errstate(all="ignore"):
        middle = corners.mean(axis=1)
        return _similarity(SIDE_PX / side + 0j, middle[:, 0] + 1j * middle[:, 1], (1 + 1j) * SIDE_PX / 2)


def _similarity(
    a: NDArray[np.complex128], source: NDArray[np.complex128], target: complex, possible: BoolArray | None = None
) -> tuple[F32Array, BoolArray]:
    """(n, 2, 3) float32 of x -> a * (x - source) + target, and (n,) whether they can be used; NaN where not."""
    scale = np.abs(a)
    usable = np.isfinite(a) & (scale > SCALE_LIMITS[0]) & (scale < SCALE_LIMITS[1])
    if possible is not None:
        usable &= possible
    moved = target - a * source
    matrices = np.stack([a.real, -a.imag, moved.real, a.imag, a.real, moved.imag], axis=1)
    matrices[~usable] = np.nan
    return matrices.astype(np.float32).reshape(-1, 2, 3), np.asarray(usable)


def warp_chips(pixels: RGBArray, matrices: F32Array, usable: BoolArray, scale: float = 1.0) -> U8Array:
    """Cut aligned chips out of a picture, bilinear, black beyond its border.

    Args:
        pixels: (h, w, 3) uint8.
        matrices: (n, 2, 3) float32 transforms from the original frame to the chip.
        usable: (n,) bool; other rows are left black.
        scale: Pixels of `pixels` per pixel of the original frame.

    Returns:
        (n, 112, 112, 3) uint8, a new array.
    """
    chips = np.zeros((len(matrices), SIDE_PX, SIDE_PX, 3), np.uint8)
    for chip, matrix, use in zip(chips, matrices, usable, strict=True):
        if use:
            cv2.warpAffine(
                pixels,
                _for_reduced(matrix, scale),
                (SIDE_PX, SIDE_PX),
                dst=chip,
                flags=cv2.INTER_LINEAR,
                borderMode=cv2.BORDER_CONSTANT,
                borderValue=(0, 0, 0),
            )
    return chips


def _for_reduced(matrix: F32Array, scale: float) -> NDArray[np.float64]:
    """The transform from pixels reduced by `scale`: x_original = (x + 0.5) / scale - 0.5."""
    out = matrix.astype(np.float64)
    if scale != 1.0:
        out[:, 2] += out[:, :2].sum(axis=1) * (0.5 / scale - 0.5)
        out[:, :2] /= scale
    return out
