"""Align and cut out all faces of all pictures of a batch at once.

Transforms are those of `facefleet.ops.align` (Umeyama 1991, closed form in two dimensions). Sampling is bilinear at the
exact place, as OpenCV 5 has it; OpenCV 4 rounds places to 1/32 pixel.
"""

from __future__ import annotations

from functools import cache

import torch

from facefleet.ops.align import BOX_TO_CHIP, SCALE_LIMITS, SIDE_PX, TEMPLATE_112
from facefleet.ops.cuda.launch import has_kernels
from facefleet.ops.cuda.pictures import Pictures

_BLOCK = 256


def alignment_matrices(landmarks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Transforms that carry landmarks onto the template.

    Args:
        landmarks: (n, 5, 2) float32 pixels of the picture.

    Returns:
        (n, 2, 3) float32 transforms picture -> chip, NaN where there is none, and (n,) bool: they are usable. As
        `ops.alignment_matrices`.
    """
    template = _template(landmarks.device)
    finite = torch.isfinite(landmarks).flatten(1).all(dim=1)
    source = torch.where(finite[:, None, None], landmarks, 0).to(torch.float64)
    source_mean, target_mean = source.mean(dim=1), template.mean(dim=0)
    s, d = source - source_mean[:, None], template - target_mean
    spread = (s * s).sum(dim=(1, 2))
    real = (s[..., 0] * d[:, 0] + s[..., 1] * d[:, 1]).sum(dim=1) / spread
    imaginary = (s[..., 0] * d[:, 1] - s[..., 1] * d[:, 0]).sum(dim=1) / spread
    return _similarity(real, imaginary, source_mean, target_mean, finite)


@cache
def _template(device: torch.device) -> torch.Tensor:
    """Copied once, for good: a copy from ordinary memory waits for the device, and recorded work goes on reading it."""
    return torch.as_tensor(TEMPLATE_112, device=device)


def box_matrices(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Transforms for detectors without landmarks, as `ops.box_matrices`.

    Args:
        boxes: (n, 4) float32 x1 y1 x2 y2.

    Returns:
        As `alignment_matrices`.
    """
    corners = boxes.to(torch.float64).view(-1, 2, 2)
    real = SIDE_PX / (corners[:, 1] - corners[:, 0]).amax(dim=1) / BOX_TO_CHIP
    middle = torch.full((2,), SIDE_PX / 2, dtype=torch.float64, device=boxes.device)
    return _similarity(real, torch.zeros_like(real), corners.mean(dim=1), middle, torch.isfinite(real))


def _similarity(
    real: torch.Tensor, imaginary: torch.Tensor, source: torch.Tensor, target: torch.Tensor, finite: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 2, 3) float32 of x -> a * (x - source) + target, a complex; and whether it is usable."""
    size = torch.hypot(real, imaginary)
    usable = finite & torch.isfinite(size) & (size > SCALE_LIMITS[0]) & (size < SCALE_LIMITS[1])
    turn = torch.stack([torch.stack([real, -imaginary], -1), torch.stack([imaginary, real], -1)], 1)
    move = target - (turn * source[:, None]).sum(dim=2)
    matrices = torch.cat([turn, move[:, :, None]], dim=2)
    return torch.where(usable[:, None, None], matrices, torch.nan).to(torch.float32), usable


def warp_chips(
    pictures: Pictures, which: torch.Tensor, matrices: torch.Tensor, usable: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Cut aligned chips out of many pictures, bilinear, black beyond their borders.

    Args:
        pictures: On the device.
        which: (n,) int64: the picture of each face.
        matrices: (n, 2, 3) float32 transforms from the original frame to the chip.
        usable: (n,) bool; other rows are left black.
        scales: (n,) float64: pixels of the picture per pixel of its original frame.

    Returns:
        (n, 112, 112, 3) uint8.
    """
    chips = torch.empty((len(which), SIDE_PX, SIDE_PX, 3), dtype=torch.uint8, device=which.device)
    warp_chips_into(chips, pictures, which, matrices, usable, scales)
    return chips


def warp_chips_into(
    chips: torch.Tensor,
    pictures: Pictures,
    which: torch.Tensor,
    matrices: torch.Tensor,
    usable: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """As `warp_chips`, into memory that is there already: (n, 112, 112, 3) uint8, contiguous."""
    if not has_kernels(chips):
        chips.copy_(_warped(pictures, which, matrices, usable, scales))
    elif len(chips):
        from facefleet.ops.cuda import kernels

        grid = (len(chips), -(-SIDE_PX * SIDE_PX // _BLOCK))
        kernels.warp_chips[grid](
            pictures.data, pictures.offsets, pictures.sizes,
            which, matrices.contiguous(), usable.contiguous().view(torch.uint8), scales, chips,
            SIDE=SIDE_PX, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip


def _warped(
    pictures: Pictures, which: torch.Tensor, matrices: torch.Tensor, usable: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The same by PyTorch's operators."""
    inverse = _inverse(_for_reduced(torch.where(usable[:, None, None], matrices, 0.0).to(torch.float64), scales))
    place = torch.arange(SIDE_PX, device=matrices.device, dtype=torch.float64)
    down = place[:, None]
    x, y = (
        inverse[:, axis, 0, None, None] * place
        + (inverse[:, axis, 1, None, None] * down + inverse[:, axis, 2, None, None])
        for axis in (0, 1)
    )
    limit = float(1 << 30)
    x, y = x.nan_to_num(-limit).clamp(-limit, limit), y.nan_to_num(-limit).clamp(-limit, limit)
    x0, y0 = x.floor(), y.floor()
    right, bottom = (x - x0).to(torch.float32)[..., None], (y - y0).to(torch.float32)[..., None]
    x0, y0 = x0.to(torch.int64), y0.to(torch.int64)
    height, width = (pictures.sizes[which, axis][:, None, None] for axis in (0, 1))

    def at(some_y: torch.Tensor, some_x: torch.Tensor) -> torch.Tensor:
        inside = (some_y >= 0) & (some_x >= 0) & (some_y < height) & (some_x < width)
        clamped_y, clamped_x = some_y.clamp(min=0).minimum(height - 1), some_x.clamp(min=0).minimum(width - 1)
        return torch.where(inside[..., None], pictures.sample(which, clamped_y, clamped_x), 0)

    top = at(y0, x0) * (1 - right) + at(y0, x0 + 1) * right
    below = at(y0 + 1, x0) * (1 - right) + at(y0 + 1, x0 + 1) * right
    chips = torch.round(top * (1 - bottom) + below * bottom)
    return torch.where(usable[:, None, None, None], chips, 0).to(torch.uint8)


def _for_reduced(matrices: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The transforms from pixels reduced by a scale: x_original = (x + 0.5) / scale - 0.5."""
    turn = matrices[:, :, :2]
    move = matrices[:, :, 2] + turn.sum(dim=2) * (0.5 / scales - 0.5)[:, None]
    return torch.cat([turn / scales[:, None, None], move[:, :, None]], dim=2)


def _inverse(matrices: torch.Tensor) -> torch.Tensor:
    """(n, 2, 3) inverses of (n, 2, 3) similarities."""
    a, b, c = matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 0, 2]
    d, e, f = matrices[:, 1, 0], matrices[:, 1, 1], matrices[:, 1, 2]
    determinant = a * e - b * d
    rows = [e, -b, b * f - c * e, -d, a, c * d - a * f]
    return (torch.stack(rows, dim=1) / determinant[:, None]).reshape(-1, 2, 3)
