"""A plan step by step with PyTorch's own operators, in any floating type on any device: what the kernels have to match.

Slow, and owns nothing. The maps hold their borders as on the device, so that it proves the plan and not only the
arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from facefleet.backends.torch.fused.plan import Conv, Head, Norm, Plan, Stem


def run_plan(plan: Plan, pictures: Tensor, kind: torch.dtype = torch.float64) -> Tensor:
    """Run a plan.

    Args:
        plan: Of a network.
        pictures: (n, h, w, 3) uint8 RGB.
        kind: Floating type to compute in.

    Returns:
        (n, dimension) in that type.
    """
    count, device = len(pictures), pictures.device
    maps: list[Tensor] = []
    for each in plan.maps:
        shape = (count, each.height + 2 * each.border, each.width + 2 * each.border, each.channels)
        made = torch.zeros(shape, dtype=kind, device=device)
        if each.fill is not None:
            made += each.fill.to(made)
        maps.append(made)

    def inside(index: int, border: int) -> Tensor:
        cut = plan.maps[index].border - border
        return maps[index][:, cut : maps[index].shape[1] - cut, cut : maps[index].shape[2] - cut]

    for step in plan.steps:
        if isinstance(step, Stem):
            x = pictures.to(kind) - step.mean.to(device, kind)
            x = F.pad(x.permute(0, 3, 1, 2), [step.padding] * 4).permute(0, 2, 3, 1)
            inside(step.target, 0).copy_(_convolve(x, step, None))
        elif isinstance(step, Conv):
            added = None
            if step.residual is not None:
                added = inside(step.residual, 0)[:, :: step.residual_step, :: step.residual_step]
            inside(step.target, 0).copy_(_convolve(inside(step.source, step.padding), step, added))
        elif isinstance(step, Norm):
            scale, shift = step.scale.to(device, kind), step.shift.to(device, kind)
            inside(step.target, 0).copy_(inside(step.source, 0) * scale + shift)
        else:
            assert isinstance(step, Head)
            flat = inside(step.source, 0).reshape(count, -1)
            return flat @ step.weight.to(device, kind).t() + step.bias.to(device, kind)
    raise AssertionError("a plan ends with a head")


def _convolve(x: Tensor, step: Stem | Conv, added: Tensor | None) -> Tensor:
    weight = step.weight.to(x).permute(0, 3, 1, 2)
    z = F.conv2d(x.permute(0, 3, 1, 2), weight, step.bias.to(x), step.stride)
    if added is not None:
        z = z + added.permute(0, 3, 1, 2)
    if step.slope is not None:
        z = F.prelu(z, step.slope.to(x))
    return z.permute(0, 2, 3, 1)
