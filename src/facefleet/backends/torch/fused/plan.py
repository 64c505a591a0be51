"""What a recognized network is made of once everything is folded: maps that hold their own border, and steps.

Owns the description: plain frozen values with the weights in them, on the CPU. Knows nothing of devices or kernels.
Anything may read it from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """An activation, kept as (n, height + 2 border, width + 2 border, channels).

    Attributes:
        channels: How many.
        height: Rows inside the border.
        width: Columns inside the border.
        border: Pixels on each side that hold `fill` for ever; writers touch the inside only.
        fill: (channels,) what the border holds; None: zeros.
    """

    channels: int
    height: int
    width: int
    border: int = 0
    fill: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stem:
    """The first convolution: PReLU(conv(pictures - mean) + bias), zero where the picture ends.

    Attributes:
        target: Index of the map it writes.
        weight: (outputs, rows, columns, 3) float64, colors in the order of the pictures, divisors folded in.
        bias: (outputs,) float64.
        slope: (outputs,) float64 of the PReLU; None: no activation.
        mean: (3,) float64, subtracted from values 0..255 in the order of the pictures.
        stride: In both directions.
        padding: On every side.
    """

    target: int
    weight: Tensor
    bias: Tensor
    slope: Tensor | None
    mean: Tensor
    stride: int
    padding: int


@dataclass(frozen=True, slots=True, eq=False)
class Conv:
    """PReLU(conv(source) + bias + residual), the border of the source taken as its padding.

    Attributes:
        source: Index of the map it reads.
        target: Index of the map it writes.
        weight: (outputs, rows, columns, inputs) float64.
        bias: (outputs,) float64.
        slope: (outputs,) float64; None: no activation.
        residual: Index of the map that is added before the activation; None: none.
        residual_step: Every so many-th row and column of it.
        stride: In both directions.
        padding: How much of the source's border it reads.
    """

    source: int
    target: int
    weight: Tensor
    bias: Tensor
    slope: Tensor | None
    residual: int | None
    residual_step: int
    stride: int
    padding: int


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """scale * source + shift, for a normalization that could not be folded into the convolution behind it.

    Attributes:
        source: Index of the map it reads.
        target: Index of the map it writes, whose border is zero.
        scale: (channels,) float64.
        shift: (channels,) float64.
    """

    source: int
    target: int
    scale: Tensor
    shift: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The last fully connected layer with the normalizations around it.

    Attributes:
        source: Index of the map it reads, which has no border.
        weight: (dimension, height * width * channels) float64, in the order of the map in memory.
        bias: (dimension,) float64.
    """

    source: int
    weight: Tensor
    bias: Tensor


Step: TypeAlias = Stem | Conv | Norm | Head


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A network as a chain of steps, a stem first and a head last.

    Attributes:
        height: Rows of its pictures.
        width: Columns.
        maps: What the steps read and write.
        steps: In order.
    """

    height: int
    width: int
    maps: tuple[Map, ...]
    steps: tuple[Step, ...]

    def signature(self, step: Step) -> str:
        """What a kernel is chosen by: two steps with the same signature do the same work on other numbers."""
        if isinstance(step, Stem):
            return f"stem {_target(self.maps[step.target])} {_filter(step.weight, step.stride)}{_act(step.slope)}"
        if isinstance(step, Conv):
            source, residual = self.maps[step.source], step.residual
            added = "" if residual is None else f" +{_target(self.maps[residual])}/{step.residual_step}"
            return (
                f"conv {_target(source)} {_filter(step.weight, step.stride)} pad {step.padding} "
                f"-> {_target(self.maps[step.target])}{added}{_act(step.slope)}"
            )
        if isinstance(step, Norm):
            return f"norm {_target(self.maps[step.source])} -> {_target(self.maps[step.target])}"
        return f"head {step.weight.shape[1]} -> {step.weight.shape[0]}"

    def gflop(self, step: Step) -> float:
        """Billions of multiplications and additions for one picture."""
        if isinstance(step, Norm):
            return 0.0
        pixels = 1 if isinstance(step, Head) else self.maps[step.target].height * self.maps[step.target].width
        return 2e-9 * pixels * int(step.weight.numel())

    def moved_bytes(self, step: Step, batch: int) -> float:
        """Bytes of a batch that have to move in 16 bits: maps read and written once, and the weights."""

        def size(index: int) -> float:
            each = self.maps[index]
            return 2.0 * batch * each.channels * each.height * each.width

        if isinstance(step, Stem):
            return batch * self.height * self.width * 3 + size(step.target)
        if isinstance(step, Norm):
            return size(step.source) + size(step.target)
        weights = 2.0 * int(step.weight.numel())
        if isinstance(step, Head):
            return size(step.source) + weights
        added = 0 if step.residual is None else size(step.residual) / step.residual_step**2
        return size(step.source) + size(step.target) + weights + added


def _target(each: Map) -> str:
    return f"{each.channels}x{each.height}x{each.width}b{each.border}"


def _filter(weight: Tensor, stride: int) -> str:
    return f"k{weight.shape[1]}x{weight.shape[2]}s{stride}"


def _act(slope: Tensor | None) -> str:
    if slope is None:
        return ""
    return " prelu" if bool((slope <= 1).all()) else " prelu>1"
