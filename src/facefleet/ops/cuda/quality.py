"""Cheap measures of how usable a face is."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name


def blur_scores(chips: torch.Tensor, aligned: torch.Tensor) -> torch.Tensor:
    """Variance of the Laplacian of each grey chip, as `ops.blur_scores`.

    Grey is OpenCV's: weights of 1/32768, rounded.

    Args:
        chips: (n, h, w, 3) uint8 RGB.
        aligned: (n,) bool; other rows give NaN.

    Returns:
        (n,) float32.
    """
    red, green, blue = chips.to(torch.int32).unbind(-1)
    grey = (red * 9798 + green * 19235 + blue * 3735 + 16384) >> 15
    # Whole numbers below 2**24: sums in float32 are exact, and padding by reflection needs a floating type.
    wide = F.pad(grey.to(torch.float32)[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    around = wide[:, :-2, 1:-1] + wide[:, 2:, 1:-1] + wide[:, 1:-1, :-2] + wide[:, 1:-1, 2:]
    laplacian = (around - 4 * wide[:, 1:-1, 1:-1]).flatten(1)
    return torch.where(aligned, laplacian.var(dim=1, correction=0), torch.nan)
