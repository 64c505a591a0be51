# mypy: disable-error-code=untyped-decorator
"""The operators that `narrow` puts into graphs: a convolution of few channels, and the first layer, one launch each.

Owns how their kernels are launched (`narrow_kernels`; that of the first layer is in `fused.kernels`) and what a
compiler is told of their results. CUDA devices only, or Triton's interpreter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STEM_DEPTH = 32
"""Numbers of a filter of three rows, columns and colors, with zeros up to what matrix units take."""
_COMPILED: set[str] = set()


@dataclass(frozen=True, slots=True)
class Tile:
    """How a convolution is cut.

    Attributes:
        rows: Of a program's pixels.
        columns: Likewise.
        depth: Channels multiplied at a time.
        warps: Of a program.
        stages: Of its pipeline.
    """

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def tile_of(inputs: int) -> Tile:
    """What serves layers of so many channels and such filters, measured on an H200 over those of SCRFD."""
    if inputs > 64:
        return Tile(8, 8, 16)
    if inputs % 16 == 0 and inputs & (inputs - 1):
        return Tile(8, 16, 16, stages=4)
    return Tile(8, 16, max(16, 1 << (inputs - 1).bit_length()))


def columns(outputs: int) -> int:
    """Channels of a tile that holds all of so many."""
    return max(16, 1 << (outputs - 1).bit_length())


def _room(x: Tensor, count: int, height: int, width: int, outputs: int) -> Tensor:
    """A new (count, outputs, height, width) map, channels last, pixels a multiple of eight numbers apart."""
    whole = x.new_empty((count, height, width, -(-outputs // 8) * 8))
    return whole[..., :outputs].permute(0, 3, 1, 2)


def _step(x: Tensor) -> int:
    """How many numbers its pixels lie apart; 0 where rows have gaps or channels are no neighbors."""
    count, _, height, width = x.shape
    step = x.stride(3)
    gapless = x.stride(1) == 1 and x.stride(2) == step * width and (count == 1 or x.stride(0) == step * width * height)
    return step if gapless else 0


def _lying(x: Tensor) -> tuple[Tensor, int]:
    """A map as the kernel reads it, and how far its pixels lie apart."""
    step = _step(x)
    if step == 0:
        x = x.contiguous(memory_format=torch.channels_last)
        step = x.shape[1]
    return x, step


def _conv_size(size: int, side: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - side) // stride + 1


@torch.library.custom_op("facefleet::narrow_conv", mutates_args=())
def narrow_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    outputs: int,
    side: int,
    stride: int,
    padding: int,
    relu: bool,
) -> Tensor:
    """A convolution, bias, what is added, and ReLU.

    Args:
        x: (n, channels, h, w) in 16 bits.
        weight: (taps, channels in, channels out) with zeros up to whole tiles.
        bias: (outputs,) float32.
        residual: Added before ReLU; like the result.
        outputs: Channels of the result.
        side: Of the filter, 1 or 3.
        stride: Of both axes.
        padding: Zeros around.
        relu: Whether what is negative becomes zero.

    Returns:
        (n, outputs, h, w), channels last.
    """
    from facefleet.backends.torch.narrow_kernels import conv

    tile = tile_of(x.shape[1])
    x, step = _lying(x)
    count, inputs, rows, columns = x.shape
    height, width = (_conv_size(size, side, stride, padding) for size in (rows, columns))
    y = _room(x, count, height, width, outputs)
    added, added_step = (y, y.stride(3)) if residual is None else _lying(residual)
    across = math.ceil(width / tile.columns)
    grid = (across * math.ceil(height / tile.rows), count)
    made = conv[grid](
        x, weight, bias, added, y, rows, columns, height, width, across, inputs, outputs, step, added_step, y.stride(3),
        side, stride, padding, tile.rows, tile.columns, tile.depth, weight.shape[2], relu, residual is not None,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    _COMPILED.add(str(getattr(made, "hash", "")))
    return y


def compiled() -> list[str]:
    """Triton's hashes of the kernels that this process has launched."""
    return sorted(_COMPILED - {""})


@narrow_conv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    outputs: int,
    side: int,
    stride: int,
    padding: int,
    relu: bool,
) -> Tensor:
    del weight, bias, residual, relu
    height, width = (_conv_size(size, side, stride, padding) for size in x.shape[2:])
    return _room(x, x.shape[0], height, width, outputs)


@torch.library.custom_op("facefleet::narrow_stem", mutates_args=())
def narrow_stem(
    pictures: Tensor, weight: Tensor, bias: Tensor, slope: Tensor, mean: Tensor, stride: int, padding: int
) -> Tensor:
    """The first convolution, of three rows and columns, from (n, h, w, 3) uint8 pictures, and PReLU.

    Args:
        pictures: Contiguous.
        weight: (outputs, 32) in 16 bits: tap by tap, color by color, divided by what normalizing divides by.
        bias: (outputs,) float32.
        slope: (outputs,) float32 of what is negative; zeros: ReLU.
        mean: (32,) float32, in the order of the weights.
        stride: Of both axes.
        padding: Around the normalized picture, with zeros.

    Returns:
        (n, outputs, h, w), channels last.
    """
    from facefleet.backends.torch.fused.kernels import stem

    count, rows, columns, _ = pictures.shape
    height, width = (_conv_size(size, 3, stride, padding) for size in (rows, columns))
    outputs = len(weight)
    y = _room(weight, count, height, width, outputs)
    pixels, block = count * height * width, 128
    columns_of_tile = 32 if outputs % 32 == 0 else 16
    grid = (math.ceil(pixels / block) * (outputs // columns_of_tile),)
    made = stem[grid](
        pictures, weight, bias, slope, mean, y, pixels, height, width, outputs,
        y.stride(0), y.stride(2), y.stride(3), rows, columns,
        PAD=padding, KH=3, KW=3, STRIDE=stride, BM=block, BN=columns_of_tile, BK=STEM_DEPTH, PRELU=True,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    _COMPILED.add(str(getattr(made, "hash", "")))
    return y


@narrow_stem.register_fake
def _(pictures: Tensor, weight: Tensor, bias: Tensor, slope: Tensor, mean: Tensor, stride: int, padding: int) -> Tensor:
    del bias, slope, mean
    height, width = (_conv_size(size, 3, stride, padding) for size in pictures.shape[1:3])
    return _room(weight, pictures.shape[0], height, width, len(weight))
