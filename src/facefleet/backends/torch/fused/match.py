"""Which imported networks are a chain of fused convolutions, and that chain with every normalization folded in.

Recognizes graphs of convolutions (one group, not dilated), normalizations, PReLU, ReLU or LeakyReLU, sums of a
convolution and a shortcut, and one fully connected layer at the end: IResNet, IR and their like. Whatever else there
is makes it no match, with the reason, and the general path runs the graph. Reads only; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from facefleet.backends.base import InputContract
from facefleet.backends.torch.fused.chains import (
    SAME,
    Chain,
    NoMatchError,
    attributes_of,
    chains_of,
    follows,
    kind_of,
    nodes_of,
    norm_of,
    only_reader,
)
from facefleet.backends.torch.fused.fold import Affine, border_of, fits_half, fold_before, fold_behind
from facefleet.backends.torch.fused.plan import Conv, Head, Map, Norm, Plan, Stem, Step

_SCALARS = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True, slots=True)
class Unmatched:
    """No chain of fused convolutions.

    Attributes:
        reason: What is in the way.
    """

    reason: str


def plan_of(
    network: fx.GraphModule, contract: InputContract, size: tuple[int, int], *, low: torch.dtype | None = None
) -> Plan | Unmatched:
    """Recognize a network.

    Args:
        network: As `importer.module_from_onnx` made it.
        contract: Of its pictures; normalization and channel order are folded into the first convolution.
        size: Height and width of the pictures.
        low: Type that every convolution's weights must have: one that the graph keeps in another type is not to be
            run in 16 bits. None: any.

    Returns:
        The plan, or why there is none.
    """
    try:
        return _Matcher(network, contract, size, low).plan()
    except NoMatchError as reason:
        return Unmatched(str(reason))


@dataclass(slots=True, eq=False)
class _Draft:
    """A map whose border is not settled yet."""

    channels: int
    height: int
    width: int
    border: int = 0
    fill: Tensor | None = None

    def claim(self, border: int, fill: Tensor | None) -> bool:
        """Have the border hold `fill` (None: zeros); whether no other reader wants something else there."""
        if self.border and border:
            mine = torch.zeros(self.channels) if self.fill is None else self.fill
            other = torch.zeros(self.channels) if fill is None else fill
            if not torch.equal(mine.double(), other.double()):
                return False
        elif border:
            self.fill = fill
        self.border = max(self.border, border)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _Value:
    """What a node of the graph is: a map (or the pictures: None) seen through a pending normalization."""

    index: int | None
    affine: Affine | None = None
    step: int = 1
    flat: bool = False


@dataclass(slots=True)
class _Matcher:
    network: fx.GraphModule
    contract: InputContract
    size: tuple[int, int]
    low: torch.dtype | None
    values: dict[fx.Node, _Value] = field(default_factory=dict)
    maps: list[_Draft] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def plan(self) -> Plan:
        chains = chains_of(self.network)
        inner = {each for chain in chains.values() for each in nodes_of(chain)}
        result: fx.Node | None = None
        for node in self.network.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = _Value(None)
            elif node.op == "output":
                outputs = node.args[0]
                if len(outputs) != 1 or outputs[0] is not result:
                    raise NoMatchError("its output is not that of the last fully connected layer")
            elif node in chains:
                self._convolve(chains[node])
            elif node.op == "call_function" and node not in inner:
                if kind_of(node) == "Gemm":
                    result = self._head(node)
                elif result is None or not follows(node, result):
                    self.values[node] = self._other(node)
        if not self.steps or not isinstance(self.steps[-1], Head) or not isinstance(self.steps[0], Stem):
            raise NoMatchError("it does not begin with a convolution and end with a fully connected layer")
        maps = tuple(Map(d.channels, d.height, d.width, d.border, d.fill) for d in self.maps)
        return Plan(*self.size, maps, tuple(self.steps))

    def _other(self, node: fx.Node) -> _Value:
        """Nodes that compute nothing of their own: what they are is kept for whoever reads them."""
        kind = kind_of(node)
        source = self._value(node.args[0])
        if kind in SAME:
            return source
        if source.flat:
            raise NoMatchError(f"{kind} behind the last map")
        if kind == "BatchNormalization" and source.step == 1:
            return _Value(source.index, self._norm(node).after(source.affine))
        if kind in _SCALARS and source.index is None:
            return _Value(None, _scalar(kind, self._constant(node.args[1])).after(source.affine))
        if kind == "MaxPool" and source.affine is None and source.step == 1:
            attributes = attributes_of(node)
            strides = list(attributes.get("strides", (1, 1)))
            if (
                list(attributes["kernel_shape"]) == [1, 1]
                and strides[0] == strides[1]
                and not any(attributes.get("pads", (0,)))
            ):
                return _Value(source.index, step=strides[0])
        if kind in ("Flatten", "Reshape") and source.step == 1 and source.index is not None:
            shape = node.args[1] if kind == "Reshape" else [0, -1] if attributes_of(node).get("axis", 1) == 1 else []
            draft = self.maps[source.index]
            width = draft.channels * draft.height * draft.width
            if isinstance(shape, Sequence) and list(shape) in ([0, -1], [-1, width], [0, width]):
                return _Value(source.index, source.affine, flat=True)
        raise NoMatchError(f"{kind} where a convolution was expected")

    def _convolve(self, chain: Chain) -> None:
        node = chain.conv
        stride, padding = _geometry(node)
        weight = self._constant(node.args[1])
        if self.low is not None and self._attribute(node.args[1]).dtype != self.low:
            raise NoMatchError("a convolution is kept in another precision")
        weight = weight.permute(0, 2, 3, 1).contiguous()
        outputs, rows, columns, inputs = weight.shape
        given = node.args[2] if len(node.args) > 2 else None
        bias = torch.zeros(outputs, dtype=torch.float64) if given is None else self._constant(given)
        if chain.norm is not None:
            weight, bias = fold_behind(weight, bias, chain.norm)
        slope = None if chain.activation is None else self._slope(chain.activation, outputs)
        source = self._value(node.args[0])
        if source.step != 1 or source.flat:
            raise NoMatchError("a convolution reads what is no whole map")
        if source.index is None:
            self._stem(chain, source, weight, bias, slope, stride, padding)
            return
        if inputs % 32 or outputs % 32:
            raise NoMatchError(f"a convolution of {inputs} to {outputs} channels: they are not whole tiles")
        index, affine = source.index, source.affine
        if padding and affine is not None:
            fill = border_of(affine)
            if fill is None or not self.maps[index].claim(padding, fill):
                index, affine = self._normalized(index, affine, padding), None
        elif padding and not self.maps[index].claim(padding, None):
            ones = torch.ones(inputs, dtype=torch.float64)
            index = self._normalized(index, Affine(ones, 0 * ones), padding)
        if affine is not None:
            weight, bias = fold_before(weight, bias, affine)
        if not fits_half(weight):
            raise NoMatchError("folded weights that 16-bit floats cannot hold")
        draft = self.maps[index]
        height = (draft.height + 2 * padding - rows) // stride + 1
        width = (draft.width + 2 * padding - columns) // stride + 1
        residual, step = self._residual(chain, (outputs, height, width))
        self.maps.append(_Draft(outputs, height, width))
        target = len(self.maps) - 1
        self.steps.append(Conv(index, target, weight, bias, slope, residual, step, stride, padding))
        self.values[chain.end] = _Value(target)

    def _stem(
        self,
        chain: Chain,
        source: _Value,
        weight: Tensor,
        bias: Tensor,
        slope: Tensor | None,
        stride: int,
        padding: int,
    ) -> None:
        if self.steps or chain.add is not None or weight.shape[3] != 3 or weight.shape[0] % 32:
            raise NoMatchError("the first convolution is not one of pictures alone")
        std = torch.tensor(self.contract.std, dtype=torch.float64)
        mean = torch.tensor(self.contract.mean, dtype=torch.float64)
        affine = Affine(1 / std, -mean / std)
        if source.affine is not None:
            affine = source.affine.after(affine)
        if not bool((affine.scale != 0).all()):
            raise NoMatchError("a color that is multiplied by zero")
        weight, mean = weight * affine.scale, -affine.shift / affine.scale
        if self.contract.color == "bgr":
            weight, mean = weight.flip(3), mean.flip(0)
        if not fits_half(weight, mean + 255, mean):
            raise NoMatchError("a first layer that 16-bit floats cannot hold")
        sides = [
            (side + 2 * padding - size) // stride + 1 for side, size in zip(self.size, weight.shape[1:3], strict=True)
        ]
        self.maps.append(_Draft(weight.shape[0], *sides))
        self.steps.append(Stem(0, weight.contiguous(), bias, slope, mean, stride, padding))
        self.values[chain.end] = _Value(0)

    def _residual(self, chain: Chain, shape: tuple[int, int, int]) -> tuple[int | None, int]:
        if chain.add is None:
            return None, 1
        inside = nodes_of(chain)
        others = [each for each in chain.add.args if each not in inside]
        value = self._value(others[0]) if len(others) == 1 else _Value(None)
        if value.index is None or value.affine is not None or value.flat:
            raise NoMatchError("a sum of something else than a convolution and a map")
        draft = self.maps[value.index]
        sides = tuple(-(-side // value.step) for side in (draft.height, draft.width))
        if (draft.channels, *sides) != shape:
            raise NoMatchError("a sum of different shapes")
        return value.index, value.step

    def _normalized(self, index: int, affine: Affine, border: int) -> int:
        """A map of its own for what cannot be folded."""
        draft = self.maps[index]
        self.maps.append(_Draft(draft.channels, draft.height, draft.width, border))
        self.steps.append(Norm(index, len(self.maps) - 1, affine.scale, affine.shift))
        return len(self.maps) - 1

    def _head(self, node: fx.Node) -> fx.Node:
        """The fully connected layer and the normalization behind it; the node that is the network's output."""
        attributes = attributes_of(node)
        source = self._value(node.args[0])
        if (
            not source.flat
            or source.index is None
            or attributes.get("transA", 0)
            or any(attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
        ):
            raise NoMatchError("a fully connected layer that does not read the last map")
        weight = self._constant(node.args[1])
        weight = weight if attributes.get("transB", 0) else weight.t()
        index, draft = source.index, self.maps[source.index]
        weight = weight.reshape(-1, draft.channels, draft.height, draft.width).permute(0, 2, 3, 1).contiguous()
        given = node.args[2] if len(node.args) > 2 else None
        bias = torch.zeros(len(weight), dtype=torch.float64) if given is None else self._constant(given).reshape(-1)
        if source.affine is not None:
            weight, bias = fold_before(weight, bias, source.affine)
        if draft.border:
            ones = torch.ones(draft.channels, dtype=torch.float64)
            index = self._normalized(index, Affine(ones, 0 * ones), 0)
        end = node
        while (follower := only_reader(end)) is not None and kind_of(follower) in (*SAME, "BatchNormalization"):
            if kind_of(follower) == "BatchNormalization":
                weight, bias = fold_behind(weight, bias, self._norm(follower))
            end = follower
        if not fits_half(weight) or weight.shape[0] % 32 or draft.channels % 64:
            raise NoMatchError("a last layer that 16-bit floats cannot hold, or whose channels are not whole tiles")
        self.steps.append(Head(index, weight.reshape(len(weight), -1), bias))
        return end

    def _value(self, node: Any) -> _Value:  # noqa: ANN401  # an argument of a node
        if not isinstance(node, fx.Node) or node not in self.values:
            raise NoMatchError("a value that is not a map is read")
        return self.values[node]

    def _attribute(self, node: Any) -> Tensor:  # noqa: ANN401
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            raise NoMatchError("weights that are computed")
        found: Tensor = getattr(self.network, str(node.target))
        return found

    def _constant(self, node: Any) -> Tensor:  # noqa: ANN401
        if isinstance(node, int | float):
            return torch.tensor(float(node), dtype=torch.float64)
        return self._attribute(node).detach().double().cpu()

    def _norm(self, node: fx.Node) -> Affine:
        return norm_of(self._constant, node)

    def _slope(self, node: fx.Node, channels: int) -> Tensor:
        kind = kind_of(node)
        if kind == "PRelu":
            return self._constant(node.args[1]).reshape(-1).expand(channels).contiguous()
        slope = attributes_of(node).get("alpha", 0.01) if kind == "LeakyRelu" else 0.0
        return torch.full((channels,), float(slope), dtype=torch.float64)


def _geometry(node: fx.Node) -> tuple[int, int]:
    """Stride and padding, which have to be the same everywhere."""
    attributes = attributes_of(node)
    pads, strides = list(attributes.get("pads", (0,) * 4)), list(attributes.get("strides", (1, 1)))
    if attributes.get("group", 1) != 1 or any(each != 1 for each in attributes.get("dilations", (1,))):
        raise NoMatchError("a convolution in groups, or dilated")
    if len(set(pads)) != 1 or len(set(strides)) != 1 or attributes.get("auto_pad", b"NOTSET") == b"VALID":
        raise NoMatchError("a convolution of uneven pads or strides")
    return int(strides[0]), int(pads[0])


def _scalar(kind: str, value: Tensor) -> Affine:
    """What a sum with, or a product by, a constant does to pictures."""
    if value.numel() not in (1, 3):
        raise NoMatchError(f"{kind} of pictures and a constant of {value.numel()} numbers")
    each = value.reshape(-1).expand(3).contiguous()
    one, zero = torch.ones_like(each), torch.zeros_like(each)
    pairs = {"Add": (one, each), "Sub": (one, -each), "Mul": (each, zero), "Div": (1 / each, zero)}
    return Affine(*pairs[kind])
