"""IResNet, the backbone of ArcFace: residual blocks that start with a normalization and end without an activation.

Source: Duta, Liu, Zhu, Shao, "Improved residual networks for image and video recognition", ICPR 2020; Deng, Guo, Xue,
Zafeiriou, "ArcFace: additive angular margin loss for deep face recognition", CVPR 2019, section 3.1. Names of
parameters as in the published checkpoints of insightface's `recognition/arcface_torch`. Inference only. Safe in any
thread once in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

_WIDTHS = (64, 128, 256, 512)


class ResidualBlock(nn.Module):
    """Normalize, convolve, normalize, PReLU, convolve with `stride`, normalize; then add.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the second convolution; other than 1, the shortcut is a 1x1 convolution with it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride), rounded up."""
        inner = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        out: Tensor = self.bn3(self.conv2(inner)) + self.downsample(x)
        return out


class IResNet(nn.Module):
    """An IResNet for 112 x 112 chips.

    Args:
        blocks: Residual blocks in each of the four stages, e.g. (3, 4, 14, 3) for depth 50.
        dimension: Length of the embedding.
    """

    def __init__(self, blocks: Sequence[int], dimension: int = 512) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.prelu = nn.PReLU(_WIDTHS[0])
        stages = []
        inputs = _WIDTHS[0]
        for width, count in zip(_WIDTHS, blocks, strict=True):
            first = ResidualBlock(inputs, width, stride=2)
            stages.append(nn.Sequential(first, *(ResidualBlock(width, width, stride=1) for _ in range(count - 1))))
            inputs = width
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn2 = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs * 7 * 7, dimension)
        self.features = nn.BatchNorm1d(dimension)

    def forward(self, x: Tensor) -> Tensor:
        """Embed chips.

        Args:
            x: (n, 3, 112, 112) float, RGB, (value - 127.5) / 127.5.

        Returns:
            (n, dimension), not normalized.
        """
        x = self.prelu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.features(self.fc(self.bn2(x).flatten(1)))
        return out
