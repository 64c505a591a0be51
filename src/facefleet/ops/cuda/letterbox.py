"""Fit many pictures into detector inputs of one size, in one launch.

Resizing is OpenCV's INTER_LINEAR for bytes, to the bit where a picture shrinks: weights rounded to 1/2048, products of
rows shifted right by 4, weighted sums of them by 16, the end by 2 with rounding (OpenCV,
modules/imgproc/src/resize.cpp, the fixed-point path); halving exactly is the mean of four pixels there, and here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from facefleet.ops.cuda.launch import has_kernels
from facefleet.ops.cuda.pictures import Pictures
from facefleet.ops.letterbox import Letterbox

_ONE = 2048
_BLOCK = 256


def letterbox(pictures: Pictures, plans: Sequence[Letterbox]) -> torch.Tensor:
    """Draw every picture into its detector input.

    Args:
        pictures: On the device.
        plans: One a picture, of one width and height.

    Returns:
        (n, height, width, 3) uint8: the content top left, zeros elsewhere.
    """
    device = pictures.data.device
    content = torch.tensor(
        [[plan.content_height, plan.content_width] for plan in plans], dtype=torch.int64, device=device
    )
    out = torch.empty((len(plans), plans[0].height, plans[0].width, 3), dtype=torch.uint8, device=device)
    letterbox_into(out, pictures, content)
    return out


def letterbox_into(out: torch.Tensor, pictures: Pictures, content: torch.Tensor) -> None:
    """As `letterbox`, into memory that is there already.

    Args:
        out: (n, height, width, 3) uint8, contiguous; written.
        pictures: n pictures on its device.
        content: (n, 2) int64: rows and columns that each picture covers.
    """
    if not has_kernels(out):
        out.copy_(_drawn(pictures, content, *out.shape[1:3]))
        return
    from facefleet.ops.cuda import kernels

    count, height, width = out.shape[:3]
    grid = (count, -(-height * width // _BLOCK))
    kernels.letterbox[grid](
        pictures.data, pictures.offsets, pictures.sizes, content, out, height, width, BLOCK=_BLOCK, num_warps=4
    )


def _drawn(pictures: Pictures, content: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The same by PyTorch's operators: (n, height, width, 3) uint8."""
    device = pictures.data.device
    y0, y1, b0, b1 = _taps(height, content[:, 0], pictures.sizes[:, 0])
    x0, x1, a0, a1 = _taps(width, content[:, 1], pictures.sizes[:, 1])
    which = torch.arange(len(pictures), device=device)

    def row(y: torch.Tensor) -> torch.Tensor:
        grid_y = y[:, :, None].expand(-1, -1, width)
        left = pictures.sample(which, grid_y, x0[:, None].expand_as(grid_y))
        right = pictures.sample(which, grid_y, x1[:, None].expand_as(grid_y))
        return left * a0[:, None, :, None] + right * a1[:, None, :, None]

    above, below = row(y0), row(y1)
    top = (b0[:, :, None, None] * (above >> 4)) >> 16
    bottom = (b1[:, :, None, None] * (below >> 4)) >> 16
    drawn = (top + bottom + 2) >> 2
    halved = (pictures.sizes == 2 * content).all(dim=1)
    drawn = torch.where(halved[:, None, None, None], _means(pictures, which, y0, x0), drawn)
    inside_y = torch.arange(height, device=device)[None] < content[:, :1]
    inside_x = torch.arange(width, device=device)[None] < content[:, 1:]
    inside = (inside_y[:, :, None] & inside_x[:, None, :])[..., None]
    return torch.where(inside, drawn, 0).to(torch.uint8)


def _taps(
    length: int, content: torch.Tensor, size: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both neighbors of each output pixel along an axis, (n, length) int64, and their weights of 2048, int32."""
    place = torch.arange(length, device=size.device, dtype=torch.float64)[None]
    scale = size.to(torch.float64) / content
    at = ((place + 0.5) * scale[:, None] - 0.5).to(torch.float32)
    first = torch.floor(at)
    share = at - first
    last = (size - 1)[:, None]
    first = first.to(torch.int64)
    share = torch.where((first < 0) | (first >= last), 0.0, share)
    first = first.clamp(min=0).minimum(last)
    second = (first + 1).minimum(last)
    one = torch.round((1.0 - share) * _ONE).to(torch.int32)
    other = torch.round(share * _ONE).to(torch.int32)
    return first, second, one, other


def _means(pictures: Pictures, which: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The mean of each pixel at (y, x), its right, its lower and its lower right neighbor, rounded."""
    last = (pictures.sizes - 1)[:, :, None]
    below, right = (y + 1).minimum(last[:, 0]), (x + 1).minimum(last[:, 1])
    rows, columns = y.shape[1], x.shape[1]

    def at(some_y: torch.Tensor, some_x: torch.Tensor) -> torch.Tensor:
        grid_y = some_y[:, :, None].expand(-1, -1, columns)
        return pictures.sample(which, grid_y, some_x[:, None].expand(-1, rows, -1))

    return (at(y, x) + at(y, right) + at(below, x) + at(below, right) + 2) >> 2
