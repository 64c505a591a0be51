"""The IR backbone of CurricularFace and AdaFace: a flat row of residual units over three named parts.

Two layouts share the name IR_101 and differ inside the unit: CurricularFace's own repository has no normalization
between the first convolution and the PReLU; TFace, ModelScope and AdaFace have one.

Source: Deng, Guo, Xue, Zafeiriou, "ArcFace", CVPR 2019, section 3.1 (the unit); Huang et al., "CurricularFace:
adaptive curriculum learning loss for deep face recognition", CVPR 2020, published at HuangYG123/CurricularFace and in
Tencent/TFace; Kim, Jain, Liu, "AdaFace: quality adaptive margin for face recognition", CVPR 2022, published at
mk-minchul/AdaFace. Names of parameters as in those checkpoints. Inference only: dropout is left out. Safe in any
thread once in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

_WIDTHS = (64, 128, 256, 512)


class IRUnit(nn.Module):
    """One residual unit; the shortcut is a 1x1 convolution where the width changes, else every `stride`-th pixel.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        stride: Of the second convolution and the shortcut.
        inner_norm: Whether the first convolution is normalized.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, inner_norm: bool) -> None:
        super().__init__()
        self.shortcut_layer: nn.Module = nn.MaxPool2d(1, stride) if stride != 1 else nn.Identity()
        if inputs != outputs:
            self.shortcut_layer = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            *([nn.BatchNorm2d(outputs)] if inner_norm else []),
            nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride), rounded up."""
        out: Tensor = self.res_layer(x) + self.shortcut_layer(x)
        return out


class IRBackbone(nn.Module):
    """An IR network for 112 x 112 chips.

    Args:
        blocks: Units in each of the four stages, e.g. (3, 13, 30, 3) for IR_101.
        inner_norm: Whether a unit normalizes its first convolution (TFace, AdaFace) or not (HuangYG123).
        dimension: Length of the embedding.
    """

    def __init__(self, blocks: Sequence[int], *, inner_norm: bool, dimension: int = 512) -> None:
        super().__init__()
        self.input_layer = nn.Sequential(
            nn.Conv2d(3, _WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(_WIDTHS[0]), nn.PReLU(_WIDTHS[0])
        )
        units = []
        inputs = _WIDTHS[0]
        for width, count in zip(_WIDTHS, blocks, strict=True):
            for position in range(count):
                units.append(IRUnit(inputs, width, 1 if position else 2, inner_norm=inner_norm))
                inputs = width
        self.body = nn.Sequential(*units)
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Identity(),  # dropout as published; keeps the numbers of the parameters
            nn.Flatten(),
            nn.Linear(inputs * 7 * 7, dimension),
            nn.BatchNorm1d(dimension, affine=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Embed chips.

        HuangYG123 returns the flattened map beside the embedding, and AdaFace returns (embedding / norm, norm); here
        it is the embedding alone, before that division, so AdaFace's norm is the length of a row.

        Args:
            x: (n, 3, 112, 112) float, (value - 127.5) / 127.5; RGB for CurricularFace, BGR for AdaFace.

        Returns:
            (n, dimension), not normalized.
        """
        out: Tensor = self.output_layer(self.body(self.input_layer(x)))
        return out
