"""A plan on a CUDA device: its weights, and for each batch bucket the maps and the launches in order.

Owns device memory. Weights are shared by all buckets; a bucket's maps belong to it alone, so that buckets may run at
the same time on different streams. Maps are laid out in one of two ways (`Family`): with their borders, for kernels of
ours, or dense, for cuDNN, which then pads with zeros and adds a bias that depends on the place.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from facefleet.backends.torch.fused.cudnn import Operands
from facefleet.backends.torch.fused.plan import Conv, Head, Map, Norm, Plan, Stem
from facefleet.backends.torch.fused.triton_conv import Scratch

Family: TypeAlias = Literal["bordered", "dense"]
FAMILIES: tuple[Family, ...] = ("bordered", "dense")


class Weights:
    """Every number of a plan on a device, in the types that kernels read: 16 bits for products, float32 for sums."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self._of = [self._place(step) for step in plan.steps]
        self.bias_maps: dict[int, Tensor] = {}  # of the largest batch so far; smaller ones read its first rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """By the names of the step's fields."""
        return self._of[index]

    def _place(self, step: Stem | Conv | Norm | Head) -> dict[str, Tensor]:
        if isinstance(step, Norm):
            return {"scale": self._half(step.scale), "shift": self._half(step.shift)}
        placed = {"weight": self._half(step.weight), "bias": self._single(step.bias)}
        if isinstance(step, Stem):
            outputs = len(step.weight)
            taps = step.weight.reshape(outputs, -1)
            depth = max(32, 1 << (taps.shape[1] - 1).bit_length())
            placed["weight"] = self._half(F.pad(taps, (0, depth - taps.shape[1])))
            rows, columns = step.weight.shape[1:3]
            if rows <= 4 and columns <= 4:
                room = torch.zeros(outputs, 4, 4, 4, dtype=torch.float64)
                room[:, :rows, :columns, :3] = step.weight
                placed["spread"] = self._half(room.view(outputs, 64))
            placed["mean"] = self._single(F.pad(step.mean.repeat(taps.shape[1] // 3), (0, depth - taps.shape[1])))
        if isinstance(step, Head):
            placed["weight"] = placed["weight"].view(len(step.weight), 1, 1, -1)
        elif step.slope is not None:
            placed["slope"] = self._single(step.slope)
            if bool((step.slope > 1).any()):
                placed["rest"] = self._single(1 - step.slope)
        return placed

    def _half(self, value: Tensor) -> Tensor:
        return value.to(self.device, torch.float16).contiguous()

    def _single(self, value: Tensor) -> Tensor:
        return value.to(self.device, torch.float32).contiguous()


class Maps:
    """The maps of one bucket, their borders filled.

    Args:
        weights: Of the plan.
        batch: Pictures.
        family: Layout; the map that the stem writes has its border in either, since kernels of ours write it.
    """

    def __init__(self, weights: Weights, batch: int, family: Family) -> None:
        self.weights, self.batch, self.family = weights, batch, family
        plan = weights.plan
        written = {step.target for step in plan.steps if isinstance(step, Stem | Norm)}
        self._borders = [
            each.border if family == "bordered" or index in written else 0 for index, each in enumerate(plan.maps)
        ]
        self._maps = [self._map(each, border) for each, border in zip(plan.maps, self._borders, strict=True)]
        self.scratch = Scratch(weights.device)
        head = plan.steps[-1]
        assert isinstance(head, Head)
        self.output = torch.zeros((batch, 1, 1, len(head.bias)), dtype=torch.float32, device=weights.device)

    @property
    def bytes(self) -> int:
        """Memory of all maps."""
        return sum(each.numel() * each.element_size() for each in self._maps)

    def inside(self, index: int) -> Tensor:
        """(n, height, width, channels) view of a map without its border."""
        border = self._borders[index]
        return self._maps[index] if not border else self._maps[index][:, border:-border, border:-border]

    def operands(self, index: int) -> Operands:
        """The tensors of step `index`, a convolution or the head."""
        step, numbers = self.weights.plan.steps[index], self.weights[index]
        if isinstance(step, Head):
            x = self.inside(step.source).reshape(self.batch, 1, 1, -1)
            return Operands(x, numbers["weight"], numbers["bias"], None, None, self.output, 1)
        assert isinstance(step, Conv)
        border = self._borders[step.source]
        padding, bias_map = 0, None
        if border >= step.padding:
            cut = border - step.padding
            whole = self._maps[step.source]
            x = whole if not cut else whole[:, cut:-cut, cut:-cut]
        else:
            x, padding = self._maps[step.source], step.padding
            fill = self.weights.plan.maps[step.source].fill
            if fill is not None:
                bias_map = self._bias_map(index, step, fill)
        residual = None
        if step.residual is not None:
            residual = self.inside(step.residual)[:, :: step.residual_step, :: step.residual_step]
        return Operands(
            x, numbers["weight"], numbers["bias"], numbers.get("slope"), residual, self.inside(step.target),
            step.stride, padding, bias_map, numbers.get("rest"),
        )  # fmt: skip

    def whole(self, index: int) -> bool:
        """Whether the convolution at `index` reads its map border and all."""
        step = self.weights.plan.steps[index]
        return isinstance(step, Conv) and self._borders[step.source] == step.padding

    def _map(self, each: Map, border: int) -> Tensor:
        shape = (self.batch, each.height + 2 * border, each.width + 2 * border, each.channels)
        made = torch.zeros(shape, dtype=torch.float16, device=self.weights.device)
        if border and each.fill is not None:
            made.copy_(each.fill.to(made).expand(shape))
            made[:, border:-border, border:-border] = 0
        return made

    def _bias_map(self, index: int, step: Conv, fill: Tensor) -> Tensor:
        """The bias with what the border would have added, which zeros do not add."""
        known = self.weights.bias_maps.get(index)
        if known is None or len(known) < self.batch:
            image = bias_image(step, fill, self.weights.plan.maps[step.source], self.weights.device)
            known = image.half().expand(self.batch, *image.shape[1:]).contiguous()
            self.weights.bias_maps[index] = known
        return known[: self.batch]


def bias_image(step: Conv, fill: Tensor, source: Map, device: torch.device) -> Tensor:
    """(1, h, w, outputs) float64: the convolution of a map that is zero inside a border of `fill`, plus the bias."""
    border, (height, width) = step.padding, (source.height, source.width)
    image = fill.double().view(1, -1, 1, 1).repeat(1, 1, height + 2 * border, width + 2 * border).to(device)
    image[:, :, border:-border, border:-border] = 0
    weight = step.weight.double().permute(0, 3, 1, 2).contiguous().to(device)
    return F.conv2d(image, weight, step.bias.double().to(device), step.stride).permute(0, 2, 3, 1)
