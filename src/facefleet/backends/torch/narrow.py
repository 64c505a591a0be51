"""Convolutions of few channels in half precision on a CUDA device, each one launch with what follows it.

cuDNN has no kernel for them that comes near what memory allows, and leaves bias, addition and ReLU to another launch.
Owns which nodes of an imported graph are replaced; by what is in `narrow_ops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from facefleet.backends.base import InputContract
from facefleet.backends.torch.narrow_ops import STEM_DEPTH, columns, tile_of

MOST_CHANNELS = 96
"""Above, matrix units are busy with cuDNN's kernels."""
_LOW = (torch.float16, torch.bfloat16)


def narrow_convolutions(module: fx.GraphModule, contract: InputContract, size: tuple[int, int]) -> bool:
    """Replace what fits in a graph of half precision, in place.

    Args:
        module: Imported.
        contract: How pictures become its input.
        size: Height and width of the pictures, to know the maps by.

    Returns:
        Whether the first layer is among them: then the module takes (n, h, w, 3) uint8 pictures as they are.
    """
    shapes = _shapes(module, size)
    for node in list(module.graph.nodes):
        found = _Found.at(module, node, shapes)
        if found is not None:
            shapes[found.replace(module)] = shapes[node]
    pictures = _first_layer(module, contract)
    module.graph.eliminate_dead_code()
    module.recompile()
    return pictures


def _shapes(module: fx.GraphModule, size: tuple[int, int]) -> dict[fx.Node, tuple[int, ...]]:
    """Of every node that is a tensor, for one picture."""
    found: dict[fx.Node, tuple[int, ...]] = {}

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
            value = super().run_node(n)
            if isinstance(value, Tensor):
                found[n] = tuple(value.shape)
            return value

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False), torch.no_grad():
        Watch(module).run(torch.empty(1, 3, *size))
    return found


@dataclass(slots=True)
class _Found:
    """A convolution with what is fused into it."""

    conv: fx.Node
    last: fx.Node
    residual: fx.Node | None
    relu: bool

    @staticmethod
    def at(module: fx.GraphModule, node: fx.Node, shapes: dict[fx.Node, tuple[int, ...]]) -> _Found | None:
        """What begins at a node, if it is such a convolution."""
        if _kind(node) != "Conv" or not _narrow(module, node):
            return None
        found = _Found(node, node, None, relu=False)
        after = _only_reader(node)
        if after is not None and _kind(after) == "Add":
            others = [each for each in after.args if each is not node]
            if len(others) == 1 and isinstance(others[0], fx.Node) and shapes.get(others[0]) == shapes.get(node):
                found.residual, found.last = others[0], after
                after = _only_reader(after)
        if after is not None and _kind(after) == "Relu":
            found.relu, found.last = True, after
        return found

    def replace(self, module: fx.GraphModule) -> fx.Node:
        """Put one node in place of all."""
        weight, bias = _numbers(module, self.conv)
        stride, padding = _geometry(self.conv)
        numbers = _packed(weight)
        names = [_kept(module, value) for value in (numbers, bias)]
        with module.graph.inserting_before(self.last):
            given = [module.graph.get_attr(name) for name in names]
            side, outputs = weight.shape[2], len(weight)
            made = module.graph.call_function(
                torch.ops.facefleet.narrow_conv.default,
                (self.conv.args[0], *given, self.residual, outputs, side, stride, padding, self.relu),
            )
        self.last.replace_all_uses_with(made)
        return made


def _kind(node: fx.Node) -> str:
    return str(node.meta.get("operator", ("",))[0])


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _constant(module: fx.GraphModule, node: object) -> Tensor | None:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = getattr(module, str(node.target))
    return value if isinstance(value, Tensor) else None


def _plain(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it is a square one of one group in half precision, evenly padded."""
    weight, attributes = _constant(module, node.args[1]), node.meta["operator"][1]
    if weight is None or weight.dtype not in _LOW or weight.shape[2] != weight.shape[3]:
        return False
    if int(attributes.get("group", 1)) != 1 or set(attributes.get("dilations", (1,))) != {1}:
        return False
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return False
    return len(set(attributes.get("pads", (0,)))) == 1 and len(set(attributes.get("strides", (1,)))) == 1


def _narrow(module: fx.GraphModule, node: fx.Node) -> bool:
    if not _plain(module, node):
        return False
    outputs, inputs, side, _ = _numbers(module, node)[0].shape
    return bool(inputs % 8 == 0 and max(inputs, outputs) <= MOST_CHANNELS and side in (1, 3))


def _numbers(module: fx.GraphModule, node: fx.Node) -> tuple[Tensor, Tensor]:
    """Weight and bias, the latter in float32."""
    weight = _constant(module, node.args[1])
    assert weight is not None
    bias = _constant(module, node.args[2]) if len(node.args) > 2 else None
    return weight, torch.zeros(len(weight)) if bias is None else bias.float()


def _geometry(node: fx.Node) -> tuple[int, int]:
    """Stride and padding."""
    attributes = node.meta["operator"][1]
    return int(next(iter(attributes.get("strides", (1,))))), int(next(iter(attributes.get("pads", (0,)))))


def _kept(module: fx.GraphModule, value: Tensor) -> str:
    number = sum(1 for _ in module.buffers())
    name = f"narrow_{number}"
    module.register_buffer(name, value)
    return name


def _packed(weight: Tensor) -> Tensor:
    """(taps, channels in, channels out) with zeros up to whole tiles, from (out, in, side, side)."""
    outputs, inputs, side, _ = weight.shape
    depth = tile_of(inputs).depth
    room = weight.new_zeros(side * side, math.ceil(inputs / depth) * depth, columns(outputs))
    room[:, :inputs, :outputs] = weight.permute(2, 3, 1, 0).reshape(side * side, inputs, outputs)
    return room


def _first_layer(module: fx.GraphModule, contract: InputContract) -> bool:
    """Let the first convolution, and the ReLU behind it, read pictures; whether it could be."""
    images = next(node for node in module.graph.nodes if node.op == "placeholder")
    cast = _only_reader(images)
    conv = cast if cast is None or _kind(cast) != "Cast" else _only_reader(cast)
    if conv is None or _kind(conv) != "Conv" or not _plain(module, conv):
        return False
    weight, bias = _numbers(module, conv)
    outputs, inputs, side, _ = weight.shape
    if inputs != 3 or side != 3 or outputs % 16 or outputs > MOST_CHANNELS:
        return False
    relu = _only_reader(conv)
    last = relu if relu is not None and _kind(relu) == "Relu" else conv
    stride, padding = _geometry(conv)
    numbers = weight.float() / torch.tensor(contract.std).view(1, 3, 1, 1)
    mean = torch.tensor(contract.mean)
    if contract.color != "rgb":
        numbers, mean = numbers.flip(1), mean.flip(0)
    room = torch.zeros(outputs, STEM_DEPTH)
    room[:, : 9 * 3] = numbers.permute(0, 2, 3, 1).reshape(outputs, -1)
    means = torch.zeros(STEM_DEPTH)
    means[: 9 * 3] = mean.repeat(9)
    slope = torch.zeros(outputs) if last is not conv else torch.ones(outputs)
    names = [_kept(module, value) for value in (room.to(weight.dtype), bias, slope, means)]
    with module.graph.inserting_before(last):
        given = [module.graph.get_attr(name) for name in names]
        made = module.graph.call_function(torch.ops.facefleet.narrow_stem.default, (images, *given, stride, padding))
    last.replace_all_uses_with(made)
    return True
