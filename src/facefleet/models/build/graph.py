"""Small questions about an ONNX graph, and small changes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto, helper, numpy_helper

Array = NDArray[Any]


def constants(graph: GraphProto) -> dict[str, Array]:
    """Every tensor that is known without running the graph: initializers and `Constant` nodes."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def producers(graph: GraphProto) -> dict[str, NodeProto]:
    """The node that makes each tensor."""
    return {name: node for node in graph.node for name in node.output}


def consumers(graph: GraphProto) -> dict[str, list[NodeProto]]:
    """The nodes that read each tensor."""
    found: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:  # noqa: ANN401  # of any ONNX type
    """The value of an attribute."""
    for each in node.attribute:
        if each.name == name:
            return helper.get_attribute_value(each)
    return default


def set_attribute(node: NodeProto, name: str, value: Any) -> None:  # noqa: ANN401  # of any ONNX type
    """Replace or add an attribute."""
    kept: list[AttributeProto] = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def add_constant(graph: GraphProto, name: str, value: Array) -> str:
    """Add an initializer under `name`, made unique, and return its name."""
    taken = {tensor.name for tensor in graph.initializer} | {out for node in graph.node for out in node.output}
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), unique))
    return unique


def replace_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Make `nodes` the nodes of the graph."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def rename(graph: GraphProto, old: str, new: str) -> None:
    """Give a tensor another name everywhere."""
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for value in (*graph.input, *graph.output):
        if value.name == old:
            value.name = new


def prune(graph: GraphProto) -> None:
    """Drop initializers and constants that nothing reads."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    replace_nodes(graph, [node for node in graph.node if node.op_type != "Constant" or node.output[0] in read])
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def drop_dead(graph: GraphProto) -> None:
    """Drop nodes that no output depends on, and what only they read."""
    wanted = {value.name for value in graph.output}
    alive: list[NodeProto] = []
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            alive.append(node)
            wanted.update(node.input)
    replace_nodes(graph, alive[::-1])
    prune(graph)


def dims(value: Any) -> list[int | str]:  # noqa: ANN401  # a ValueInfoProto
    """Dimensions of an input or output: numbers, names of free ones, ``?`` for unnamed ones."""
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else (dim.dim_param or "?")
        for dim in value.type.tensor_type.shape.dim
    ]


def bf16_bits(value: Array) -> NDArray[np.uint16]:
    """The nearest bf16 numbers as bits, ties to even; same shape as `value`, which is float32."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return np.asarray(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
