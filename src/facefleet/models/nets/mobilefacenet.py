"""MobileFaceNet: depthwise separable bottlenecks and a global depthwise convolution.

Source: Chen, Liu, Gao, Han, "MobileFaceNets: efficient CNNs for accurate real-time face verification on mobile
devices", CCBR 2018, table 1; widths, groups and names of parameters as in insightface's `recognition/arcface_torch`
(`mbf`: blocks 1-4-6-2, scale 2; `mbf_large`: 2-8-12-4, scale 4). Inference only. Safe in any thread once in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

_SEPARATED = 512  # channels before the global depthwise convolution


class ConvBlock(nn.Module):
    """Convolution, normalization and perhaps PReLU, under the name `layers`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            *([nn.PReLU(outputs)] if activation else []),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h', w')."""
        out: Tensor = self.layers(x)
        return out


class DepthWise(nn.Module):
    """Widen to `hidden` channels, filter each channel, narrow; a shortcut where `residual`."""

    def __init__(self, inputs: int, outputs: int, hidden: int, *, stride: int, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.layers = nn.Sequential(
            ConvBlock(inputs, hidden),
            ConvBlock(hidden, hidden, 3, stride=stride, padding=1, groups=hidden),
            ConvBlock(hidden, outputs, activation=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride), rounded up."""
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class Residual(nn.Module):
    """`count` bottlenecks of one width, each with a shortcut."""

    def __init__(self, width: int, count: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(DepthWise(width, width, hidden, stride=1, residual=True) for _ in range(count)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, width, h, w), same shape out."""
        out: Tensor = self.layers(x)
        return out


class GlobalDepthwise(nn.Module):
    """One 7x7 filter a channel over the whole map, then a projection."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvBlock(_SEPARATED, _SEPARATED, 7, groups=_SEPARATED, activation=False),
            nn.Flatten(),
            nn.Linear(_SEPARATED, dimension, bias=False),
            nn.BatchNorm1d(dimension),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, 512, 7, 7) to (n, dimension)."""
        out: Tensor = self.layers(x)
        return out


class MobileFaceNet(nn.Module):
    """A MobileFaceNet for 112 x 112 chips.

    Args:
        blocks: Bottlenecks in the four groups; a first group of one is a depthwise convolution instead.
        scale: Factor of the widths of the paper.
        dimension: Length of the embedding.
    """

    def __init__(self, blocks: Sequence[int] = (1, 4, 6, 2), scale: int = 2, dimension: int = 512) -> None:
        super().__init__()
        first, second, third, fourth = blocks
        narrow, wide = 64 * scale, 128 * scale
        stem = ConvBlock(narrow, narrow, 3, padding=1, groups=64) if first == 1 else Residual(narrow, first, 128)
        self.layers = nn.Sequential(
            ConvBlock(3, narrow, 3, stride=2, padding=1),
            stem,
            DepthWise(narrow, narrow, 128, stride=2, residual=False),
            Residual(narrow, second, 128),
            DepthWise(narrow, wide, 256, stride=2, residual=False),
            Residual(wide, third, 256),
            DepthWise(wide, wide, 512, stride=2, residual=False),
            Residual(wide, fourth, 256),
        )
        self.conv_sep = ConvBlock(wide, _SEPARATED)
        self.features = GlobalDepthwise(dimension)

    def forward(self, x: Tensor) -> Tensor:
        """Embed chips.

        Args:
            x: (n, 3, 112, 112) float, RGB, (value - 127.5) / 127.5.

        Returns:
            (n, dimension), not normalized.
        """
        out: Tensor = self.features(self.conv_sep(self.layers(x)))
        return out
