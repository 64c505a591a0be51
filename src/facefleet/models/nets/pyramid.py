"""The two bodies that published RetinaFace checkpoints stand on: maps at strides 8, 16 and 32.

Source: Howard et al., "MobileNets", 2017 (width 0.25); He, Zhang, Ren, Sun, "Deep residual learning for image
recognition", CVPR 2016, with the stride on the 3x3 convolution as torchvision has it. Names of parameters as in
biubug6/Pytorch_Retinaface. Inference only. Safe in any thread once in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

_SLOPE = 0.1


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.LeakyReLU(_SLOPE),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(_SLOPE),
    )


class MobileNetQuarter(nn.Module):
    """MobileNet of a quarter of the width; `widths` are the channels of its three maps."""

    widths = (64, 128, 256)

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(_SLOPE))
        self.stage1 = nn.Sequential(
            stem,
            _separable(8, 16, 1),
            _separable(16, 32, 2),
            _separable(32, 32, 1),
            _separable(32, 64, 2),
            _separable(64, 64, 1),
        )
        self.stage2 = nn.Sequential(_separable(64, 128, 2), *(_separable(128, 128, 1) for _ in range(5)))
        self.stage3 = nn.Sequential(_separable(128, 256, 2), _separable(256, 256, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, 3, h, w) to maps at strides 8, 16 and 32, sides rounded up."""
        fine: Tensor = self.stage1(x)
        middle: Tensor = self.stage2(fine)
        coarse: Tensor = self.stage3(middle)
        return fine, middle, coarse


class Bottleneck(nn.Module):
    """1x1, 3x3 with `stride`, 1x1 to four times `width`; ReLU after each and after the sum."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, 4 * width, h / stride, w / stride), rounded up."""
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        out: Tensor = self.relu(self.bn3(self.conv3(inner)) + self.downsample(x))
        return out


class ResNetPyramid(nn.Module):
    """A bottleneck ResNet without its classifier; `widths` are the channels of its three maps.

    Args:
        blocks: Bottlenecks in each of the four stages, (3, 4, 6, 3) for ResNet-50.
    """

    widths = (512, 1024, 2048)

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        stages = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            first = Bottleneck(inputs, width, stride=2 if stage else 1)
            inputs = 4 * width
            stages.append(nn.Sequential(first, *(Bottleneck(inputs, width, stride=1) for _ in range(count - 1))))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, 3, h, w) to maps at strides 8, 16 and 32, sides rounded up."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        fine: Tensor = self.layer2(self.layer1(x))
        middle: Tensor = self.layer3(fine)
        coarse: Tensor = self.layer4(middle)
        return fine, middle, coarse
