"""RetinaFace: a feature pyramid, a context module a level, and three 1x1 heads a level.

Source: Deng, Guo, Ververas, Kotsia, Zafeiriou, "RetinaFace: single-shot multi-level face localisation in the wild",
CVPR 2020; Lin et al., "Feature pyramid networks", CVPR 2017; Najibi et al., "SSH: single stage headless face detector",
ICCV 2017, figure 4 (context). Names of parameters as in biubug6/Pytorch_Retinaface. Inference only. Safe in any thread
once in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from facefleet.models.nets.pyramid import MobileNetQuarter, ResNetPyramid

_ANCHORS = 2  # a cell


def _conv(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


def _activation(channels: int) -> nn.Module:
    """Narrow networks were published with a leaky ReLU; `channels` are those of the module, not of the convolution."""
    return nn.LeakyReLU(0.1) if channels <= 64 else nn.ReLU()


class FeaturePyramid(nn.Module):
    """Coarse maps added to finer ones.

    Args:
        widths: Channels of the maps that come in, finest first.
        channels: Channels of the maps that go out.
    """

    def __init__(self, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.output1, self.output2, self.output3 = (
            nn.Sequential(*_conv(width, channels, 1), _activation(channels)) for width in widths
        )
        self.merge1, self.merge2 = (nn.Sequential(*_conv(channels, channels, 3), _activation(channels)) for _ in "12")

    def forward(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Three maps, finest first, to three maps of the same sides."""
        top: Tensor = self.output3(coarse)
        lateral: Tensor = self.output2(middle)
        center: Tensor = self.merge2(lateral + functional.interpolate(top, size=lateral.shape[-2:], mode="nearest"))
        lateral = self.output1(fine)
        bottom: Tensor = self.merge1(lateral + functional.interpolate(center, size=lateral.shape[-2:], mode="nearest"))
        return bottom, center, top


class ContextModule(nn.Module):
    """Receptive fields of 3, 5 and 7 side by side (SSH).

    Args:
        channels: In and out; half of them see 3x3, a quarter each 5x5 and 7x7.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        half, quarter = channels // 2, channels // 4
        self.conv3X3 = nn.Sequential(*_conv(channels, half, 3))
        self.conv5X5_1 = nn.Sequential(*_conv(channels, quarter, 3), _activation(channels))
        self.conv5X5_2 = nn.Sequential(*_conv(quarter, quarter, 3))
        self.conv7X7_2 = nn.Sequential(*_conv(quarter, quarter, 3), _activation(channels))
        self.conv7x7_3 = nn.Sequential(*_conv(quarter, quarter, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w), same shape out."""
        shared = self.conv5X5_1(x)
        fields = [self.conv3X3(x), self.conv5X5_2(shared), self.conv7x7_3(self.conv7X7_2(shared))]
        return functional.relu(torch.cat(fields, dim=1))


class Head(nn.Module):
    """`values` numbers for each anchor, by a 1x1 convolution."""

    def __init__(self, channels: int, values: int) -> None:
        super().__init__()
        self.values = values
        self.conv1x1 = nn.Conv2d(channels, _ANCHORS * values, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) to (n, h * w * 2, values), in the order row, column, anchor."""
        found: Tensor = self.conv1x1(x).permute(0, 2, 3, 1)
        return found.reshape(found.shape[0], -1, self.values)


class RetinaFace(nn.Module):
    """RetinaFace for pictures of any size.

    Args:
        body: Gives maps at strides 8, 16 and 32.
        channels: Width of the pyramid: 64 on MobileNet, 256 on ResNet-50.
    """

    def __init__(self, body: MobileNetQuarter | ResNetPyramid, channels: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramid(body.widths, channels)
        self.ssh1, self.ssh2, self.ssh3 = (ContextModule(channels) for _ in "123")
        self.ClassHead, self.BboxHead, self.LandmarkHead = (
            nn.ModuleList(Head(channels, values) for _ in "123") for values in (2, 4, 10)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Detect; rows are the anchors of strides 8, 16 and 32 in turn, each in the order row, column, anchor.

        Args:
            x: (n, 3, h, w) float, BGR, value - (104, 117, 123); any sides.

        Returns:
            loc (n, a, 4): offsets of centers and logarithms of sides, before the variances.
            conf (n, a, 2): softmax; column 1 is "face".
            landm (n, a, 10): offsets of five points, x and y in turn, before the variances.
            With a = 2 * the sum over the strides of ceil(h / stride) * ceil(w / stride).
        """
        levels = self.fpn(*self.body(x))
        maps = [context(level) for context, level in zip((self.ssh1, self.ssh2, self.ssh3), levels, strict=True)]
        conf, loc, landm = (
            torch.cat([head(level) for head, level in zip(heads, maps, strict=True)], dim=1)
            for heads in (self.ClassHead, self.BboxHead, self.LandmarkHead)
        )
        return loc, conf.softmax(dim=-1), landm
