"""The arithmetic of folding: normalizations into the convolutions behind and before them, exactly, in float64.

A normalization in front of a padded convolution is a * x + b inside the map and zero outside of it. Where the border
of x holds -b / a, a * x + b is zero there, so the convolution may take a into its weights, the sum of w * b into its
bias, and read the border like any other pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 65504.0  # of 16-bit floats, which the border is kept in


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """scale * x + shift, a number a channel each, float64."""

    scale: Tensor
    shift: Tensor

    def after(self, first: Affine | None) -> Affine:
        """Both as one, `first` applied first."""
        if first is None:
            return self
        return Affine(self.scale * first.scale, self.scale * first.shift + self.shift)


def affine_of_norm(scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> Affine:
    """A batch normalization in inference (Ioffe, Szegedy, 2015, algorithm 2)."""
    factor = scale.double() / torch.sqrt(variance.double() + epsilon)
    return Affine(factor, bias.double() - mean.double() * factor)


def border_of(affine: Affine) -> Tensor | None:
    """What a map's border has to hold for `affine` to be zero there; None if no 16-bit number does that."""
    border = -affine.shift / affine.scale
    border = torch.where(affine.shift == 0, torch.zeros_like(border), border)  # 0 / 0: any value would do
    fits = bool(torch.isfinite(border).all()) and float(border.abs().max()) <= _LARGEST
    return border if fits else None


def fold_before(weight: Tensor, bias: Tensor, affine: Affine) -> tuple[Tensor, Tensor]:
    """Weights (outputs, rows, columns, inputs) and bias with a normalization of the input taken in."""
    return weight * affine.scale, bias + (weight * affine.shift).sum((1, 2, 3))


def fold_behind(weight: Tensor, bias: Tensor, affine: Affine) -> tuple[Tensor, Tensor]:
    """Weights (outputs, ...) and bias with a normalization of the output taken in."""
    scale = affine.scale.reshape(-1, *[1] * (weight.ndim - 1))
    return weight * scale, bias * affine.scale + affine.shift


def fits_half(*tensors: Tensor) -> bool:
    """Whether 16-bit floats can hold all the numbers."""
    return all(bool(torch.isfinite(each).all()) and float(each.abs().max()) <= _LARGEST for each in tensors)
