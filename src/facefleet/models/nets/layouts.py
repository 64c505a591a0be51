"""Which published network a set of parameters belongs to.

Owns the table of networks and the recognition by names and shapes. Imports no torch until a network is built. Safe in
any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from facefleet.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, tuple[int, ...]]
Triple = tuple[float, float, float]


def _count(shapes: Shapes, pattern: str) -> int:
    """One more than the largest number that `pattern` captures at the start of a name; 0 without any."""
    found = [int(match[1]) for match in map(re.compile(pattern).match, shapes) if match]
    return max(found, default=-1) + 1


def _stages(shapes: Shapes, prefix: str = "") -> tuple[int, ...]:
    return tuple(_count(shapes, rf"{re.escape(prefix)}layer{stage}\.(\d{{1,4}})\.") for stage in (1, 2, 3, 4))


def _mobile_groups(shapes: Shapes) -> tuple[int, ...]:
    groups = (_count(shapes, rf"layers\.{position}\.layers\.(\d{{1,4}})\.layers\.") for position in (1, 3, 5, 7))
    scale = shapes.get("layers.0.layers.0.weight", (0,))[0] // 64
    return (*(count or 1 for count in groups), scale)


def _build_iresnet(blocks: Sequence[int]) -> nn.Module:
    from facefleet.models.nets.iresnet import IResNet

    return IResNet(blocks)


def _build_mobilefacenet(blocks: Sequence[int]) -> nn.Module:
    from facefleet.models.nets.mobilefacenet import MobileFaceNet

    return MobileFaceNet(blocks[:4], scale=blocks[4])


_UNITS = {8: (2, 2, 2, 2), 24: (3, 4, 14, 3), 49: (3, 13, 30, 3)}  # units in all -> units in each stage


def _build_ir(blocks: Sequence[int]) -> nn.Module:
    from facefleet.models.nets.ir import IRBackbone

    return IRBackbone(_UNITS[blocks[0]], inner_norm=False)


def _build_ir_inner_norm(blocks: Sequence[int]) -> nn.Module:
    from facefleet.models.nets.ir import IRBackbone

    return IRBackbone(_UNITS[blocks[0]], inner_norm=True)


def _build_retinaface_mobilenet(blocks: Sequence[int]) -> nn.Module:  # noqa: ARG001  # one depth only
    from facefleet.models.nets.pyramid import MobileNetQuarter
    from facefleet.models.nets.retinaface import RetinaFace

    return RetinaFace(MobileNetQuarter(), 64)


def _build_retinaface_resnet(blocks: Sequence[int]) -> nn.Module:
    from facefleet.models.nets.pyramid import ResNetPyramid
    from facefleet.models.nets.retinaface import RetinaFace

    return RetinaFace(ResNetPyramid(blocks), 256)


@dataclass(frozen=True, slots=True)
class Layout:
    """A scheme of names that networks of one kind share.

    Attributes:
        title: What it is called in errors.
        mark: Pattern that the start of at least one name matches, in this layout only.
        blocks: Counts what makes out the depth, in the form of `NetworkSpec.blocks`.
        build: Makes the module for such counts.
    """

    title: str
    mark: str
    blocks: Callable[[Shapes], tuple[int, ...]]
    build: Callable[[Sequence[int]], nn.Module]


_IRESNET = Layout("iresnet of arcface_torch", r"layer\d\.\d+\.(prelu|bn3)\.", _stages, _build_iresnet)
_MOBILEFACENET = Layout(
    "MobileFaceNet of arcface_torch", r"conv_sep\.layers\.\d\.", _mobile_groups, _build_mobilefacenet
)
_IR = Layout(
    "IR of HuangYG123/CurricularFace",
    r"body\.\d+\.res_layer\.4\.running_mean",
    lambda shapes: (_count(shapes, r"body\.(\d{1,4})\."),),
    _build_ir,
)
_IR_INNER_NORM = Layout(
    "IR of TFace and AdaFace",
    r"body\.\d+\.res_layer\.5\.running_mean",
    lambda shapes: (_count(shapes, r"body\.(\d{1,4})\."),),
    _build_ir_inner_norm,
)
_RETINAFACE_MOBILENET = Layout(
    "RetinaFace on MobileNet of Pytorch_Retinaface",
    r"body\.stage\d\.\d+\.",
    lambda shapes: tuple(_count(shapes, rf"body\.stage{stage}\.(\d{{1,4}})\.") for stage in (1, 2, 3)),
    _build_retinaface_mobilenet,
)
_RETINAFACE_RESNET = Layout(
    "RetinaFace on ResNet of Pytorch_Retinaface",
    r"body\.layer\d\.\d+\.",
    lambda shapes: _stages(shapes, "body."),
    _build_retinaface_resnet,
)
_LAYOUTS = (_IRESNET, _MOBILEFACENET, _IR, _IR_INNER_NORM, _RETINAFACE_MOBILENET, _RETINAFACE_RESNET)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """A published network: its layout, its size, and the pictures it was trained on.

    Attributes:
        name: How it is asked for.
        layout: Its scheme of names.
        blocks: What `layout.blocks` counts in its checkpoints.
        keys: Entries of its state dict, `num_batches_tracked` included.
        parameters: Trained numbers, without running statistics.
        prefix: Prefix that tells its checkpoints from those of another network with the same layout; may be empty.
        family: How its outputs are read, as in a pack's manifest.
        color: Channel order of its input.
        mean: Subtracted from 0..255 values, per channel in `color` order.
        std: Divisor after that.
        size_px: Height and width of its input; None: any.
        outputs: Names for its outputs, in order.
        dimension: Length of its embeddings; None for a detector.
    """

    name: str
    layout: Layout
    blocks: tuple[int, ...]
    keys: int
    parameters: int
    prefix: str = ""
    family: Literal["arcface", "adaface", "retinaface"] = "arcface"
    color: Literal["rgb", "bgr"] = "rgb"
    mean: Triple = (127.5, 127.5, 127.5)
    std: Triple = (127.5, 127.5, 127.5)
    size_px: tuple[int, int] | None = (112, 112)
    outputs: tuple[str, ...] = ("output",)
    dimension: int | None = 512

    def build(self) -> nn.Module:
        """The module with torch's random weights on torch's current default device, in training mode."""
        return self.layout.build(self.blocks)


def _embedder(name: str, layout: Layout, blocks: tuple[int, ...], keys: int, parameters: int) -> NetworkSpec:
    return NetworkSpec(name=name, layout=layout, blocks=blocks, keys=keys, parameters=parameters)


def _adaface(name: str, units: int, keys: int, parameters: int) -> NetworkSpec:
    return NetworkSpec(
        name=name,
        layout=_IR_INNER_NORM,
        blocks=(units,),
        keys=keys,
        parameters=parameters,
        prefix="model.",
        family="adaface",
        color="bgr",
    )


def _retinaface(name: str, layout: Layout, blocks: tuple[int, ...], keys: int, parameters: int) -> NetworkSpec:
    return NetworkSpec(
        name=name,
        layout=layout,
        blocks=blocks,
        keys=keys,
        parameters=parameters,
        family="retinaface",
        color="bgr",
        mean=(104.0, 117.0, 123.0),
        std=(1.0, 1.0, 1.0),
        size_px=None,
        outputs=("loc", "conf", "landm"),
        dimension=None,
    )


NETWORKS: Final[Mapping[str, NetworkSpec]] = {
    spec.name: spec
    for spec in (
        _embedder("iresnet18", _IRESNET, (2, 2, 2, 2), 187, 24_025_600),
        _embedder("iresnet34", _IRESNET, (3, 4, 6, 3), 331, 34_139_328),
        _embedder("iresnet50", _IRESNET, (3, 4, 14, 3), 475, 43_590_848),
        _embedder("iresnet100", _IRESNET, (3, 13, 30, 3), 925, 65_156_160),
        _embedder("iresnet200", _IRESNET, (6, 26, 60, 6), 1807, 118_833_920),
        _embedder("mobilefacenet", _MOBILEFACENET, (1, 4, 6, 2, 2), 333, 2_059_520),
        _embedder("mobilefacenet_deep", _MOBILEFACENET, (2, 8, 12, 4, 2), 606, 3_349_888),
        _embedder("mobilefacenet_large", _MOBILEFACENET, (2, 8, 12, 4, 4), 606, 6_314_880),
        _embedder("curricularface_ir101", _IR, (49,), 672, 65_128_768),
        _embedder("curricularface_ir101_tface", _IR_INNER_NORM, (49,), 917, 65_150_912),
        _adaface("adaface_ir18", 8, 179, 24_020_352),
        _adaface("adaface_ir50", 24, 467, 43_585_600),
        _adaface("adaface_ir101", 49, 917, 65_150_912),
        _retinaface("retinaface_mobilenet0.25", _RETINAFACE_MOBILENET, (6, 6, 2), 300, 426_608),
        _retinaface("retinaface_resnet50", _RETINAFACE_RESNET, (3, 4, 6, 3), 456, 27_293_600),
    )
}


def recognize(shapes: Shapes, prefixes: Sequence[str], *, origin: str) -> NetworkSpec:
    """Find the network that names and shapes belong to; whether they are complete is not looked at.

    Args:
        shapes: Name without prefix -> shape.
        prefixes: What was taken off the names.
        origin: What to call the file in errors.

    Raises:
        CheckpointError: The layout or the depth is not known, or two networks share them.
    """
    layout = next((each for each in _LAYOUTS if any(map(re.compile(each.mark).match, shapes))), None)
    if layout is None:
        raise CheckpointError(
            f"{origin}: the layout is not known; its names start with {', '.join(list(shapes)[:3])}",
            hint=f"known layouts: {'; '.join(each.title for each in _LAYOUTS)}",
        )
    blocks = layout.blocks(shapes)
    alike = [spec for spec in NETWORKS.values() if spec.layout is layout and spec.blocks == blocks]
    if not alike:
        known = [spec for spec in NETWORKS.values() if spec.layout is layout]
        raise CheckpointError(
            f"{origin}: {layout.title} with {_dashed(blocks)} blocks is not known",
            hint=f"known: {', '.join(f'{spec.name} with {_dashed(spec.blocks)}' for spec in known)}",
        )
    fitting = [spec for spec in alike if not spec.prefix or spec.prefix in prefixes]
    if not fitting:
        raise CheckpointError(
            f"{origin}: {layout.title} with {_dashed(blocks)} blocks, but names do not say which network",
            hint=f"give name={' or name='.join(repr(spec.name) for spec in alike)}",
        )
    return max(fitting, key=lambda spec: len(spec.prefix))


def _dashed(blocks: Sequence[int]) -> str:
    return "-".join(map(str, blocks))
