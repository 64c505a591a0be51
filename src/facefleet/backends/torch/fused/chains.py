"""Convolutions of an imported graph, each with the normalization, sum and activation that can be fused with it.

Reads only; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from facefleet.backends.torch.fused.fold import Affine, affine_of_norm

SAME = ("Cast", "Identity", "Dropout")
ACTIVATIONS = ("PRelu", "Relu", "LeakyRelu")


class NoMatchError(Exception):
    """What is in the way of a match; never leaves `match`."""


@dataclass(slots=True, eq=False)
class Chain:
    """A convolution and what is fused with it."""

    conv: fx.Node
    end: fx.Node
    norm: Affine | None = None
    add: fx.Node | None = None
    activation: fx.Node | None = None


def chains_of(network: fx.GraphModule) -> dict[fx.Node, Chain]:
    """By the last node of each, every convolution with what can be fused with it."""

    def constant(node: Any) -> Tensor:  # noqa: ANN401
        if not isinstance(node, fx.Node) or node.op != "get_attr":
            raise NoMatchError("a normalization whose numbers are computed")
        value: Tensor = getattr(network, str(node.target))
        return value.detach().double().cpu()

    ends: dict[fx.Node, Chain] = {}
    for node in network.graph.nodes:
        if node.op == "call_function" and kind_of(node) == "Conv":
            chain = Chain(node, node)
            while (reader := only_reader(chain.end)) is not None and kind_of(reader) in (*SAME, "BatchNormalization"):
                if kind_of(reader) == "BatchNormalization":
                    chain.norm = norm_of(constant, reader).after(chain.norm)
                chain.end = reader
            ends[chain.end] = chain
    for node in network.graph.nodes:
        if node.op == "call_function" and kind_of(node) == "Add":
            parts = [ends[each] for each in node.args if each in ends and only_reader(each) is node]
            if parts:  # of two convolutions the larger one adds the other's result
                chain = max(parts, key=lambda each: _shape(network, each.conv))
                chain.add, chain.end = node, _behind(node, ends.pop(chain.end))
                ends[chain.end] = chain
    for chain in list(ends.values()):
        reader = only_reader(chain.end)
        if reader is not None and kind_of(reader) in ACTIVATIONS:
            del ends[chain.end]
            chain.activation = reader
            chain.end = _behind(reader, chain)
            ends[chain.end] = chain
    return ends


def _behind(node: fx.Node, chain: Chain) -> fx.Node:
    """`node`, or the last of the nodes behind it that change nothing."""
    del chain
    while (reader := only_reader(node)) is not None and kind_of(reader) in SAME:
        node = reader
    return node


def nodes_of(chain: Chain) -> set[fx.Node]:
    """Every node that a chain takes in: what leads from its convolution to its end."""
    found, node = {chain.conv}, chain.conv
    while node is not chain.end:
        node = next(iter(node.users))
        found.add(node)
    return found


def _shape(network: fx.GraphModule, conv: fx.Node) -> int:
    weight = conv.args[1]
    return int(getattr(network, str(weight.target)).numel()) if isinstance(weight, fx.Node) else 0


def only_reader(node: fx.Node) -> fx.Node | None:
    """What reads a node, if it is one node and not the output."""
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and readers[0].op == "call_function" else None


def follows(node: fx.Node, result: fx.Node) -> bool:
    """Whether `node` stands between the fully connected layer and `result`, and is folded already."""
    while node is not result:
        reader = only_reader(node)
        if reader is None:
            return False
        node = reader
    return True


def kind_of(node: fx.Node) -> str:
    """The ONNX operator a node was; its target where it was none."""
    return str(node.meta["operator"][0]) if "operator" in node.meta else str(node.target)


def attributes_of(node: fx.Node) -> dict[str, Any]:
    """The attributes of that operator."""
    found: dict[str, Any] = node.meta["operator"][1]
    return found


def norm_of(constant: Any, node: fx.Node) -> Affine:  # noqa: ANN401  # a function
    """A BatchNormalization, its numbers read through `constant`."""
    scale, bias, mean, variance = (constant(each) for each in node.args[1:5])
    return affine_of_norm(scale, bias, mean, variance, float(attributes_of(node).get("epsilon", 1e-5)))
