"""Channels that are the same for every picture, taken out of a graph. The change is checked like every rewrite."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto

from facefleet.models.build.graph import (
    Array,
    add_constant,
    attribute,
    constants,
    consumers,
    producers,
    prune,
    set_attribute,
)

_LANES = 16
_NOTHING = 1e-4  # of a layer's largest weight
_ACTIVATIONS = ("Relu", "Clip", "PRelu", "LeakyRelu")


def drop_idle_channels(graph: GraphProto) -> int:
    """Take out channels that are the same for every picture, between a convolution, a depthwise one and a 1 x 1 one.

    Training with ReLU6 and weight decay leaves channels whose weights are next to nothing. What such a channel adds to
    the 1 x 1 convolution behind it is a constant, which its bias takes up. Channels are kept in sixteens, as processors
    compute them.

    Returns:
        Channels taken out.
    """
    known = constants(graph)
    readers, made = consumers(graph), producers(graph)
    outputs = {value.name for value in graph.output}
    dropped = 0
    for depthwise in list(graph.node):
        chain = _bottleneck(depthwise, known, made, readers, outputs)
        if chain is None:
            continue
        first, before, after, last = chain
        value, idle = _idle(known, first, before, depthwise, after)
        channels = len(idle)
        keep = -(-(channels - int(idle.sum())) // _LANES) * _LANES
        if keep >= channels:
            continue
        gone = np.flatnonzero(idle)[: channels - keep]
        stay = np.setdiff1d(np.arange(channels), gone)
        weight = known[last.input[1]]
        bias = known[last.input[2]] if len(last.input) > 2 else np.zeros(len(weight), np.float32)
        moved = bias + np.einsum("oc,c->o", weight[:, gone, 0, 0].astype(np.float64), value[gone])
        for node, position, array in (
            (first, 1, known[first.input[1]][stay]),
            (first, 2, known[first.input[2]][stay]),
            (depthwise, 1, known[depthwise.input[1]][stay]),
            (depthwise, 2, known[depthwise.input[2]][stay]),
            (last, 1, weight[:, stay]),
            (last, 2, moved.astype(np.float32)),
        ):
            _put(graph, known, node, position, array)
        for node in (before, after):
            if node.op_type == "PRelu" and known[node.input[1]].size == channels:
                _put(graph, known, node, 1, known[node.input[1]][stay])
        set_attribute(depthwise, "group", keep)
        dropped += len(gone)
    if dropped:
        prune(graph)
    return dropped


def _bottleneck(
    depthwise: NodeProto,
    known: dict[str, Array],
    made: dict[str, NodeProto],
    readers: dict[str, list[NodeProto]],
    outputs: set[str],
) -> tuple[NodeProto, NodeProto, NodeProto, NodeProto] | None:
    """(convolution, activation, activation, 1 x 1 convolution) around a depthwise convolution, none read elsewhere."""
    if depthwise.op_type != "Conv" or len(depthwise.input) != 3 or depthwise.input[1] not in known:
        return None
    weight = known[depthwise.input[1]]
    if weight.shape[1] != 1 or attribute(depthwise, "group", 1) != len(weight):
        return None
    before = made.get(depthwise.input[0])
    first = made.get(before.input[0]) if before is not None else None
    after = _only(readers, depthwise.output[0])
    last = _only(readers, after.output[0]) if after is not None else None
    if before is None or first is None or after is None or last is None:
        return None
    inner = (first.output[0], before.output[0], depthwise.output[0], after.output[0])
    if any(len(readers.get(name, ())) != 1 or name in outputs for name in inner):
        return None
    if {before.op_type, after.op_type} - set(_ACTIVATIONS) or first.op_type != "Conv" or last.op_type != "Conv":
        return None
    if len(first.input) != 3 or not all(name in known for name in (*first.input[1:], *last.input[1:])):
        return None
    if attribute(first, "group", 1) != 1 or attribute(last, "group", 1) != 1:
        return None
    if known[last.input[1]].shape[2:] != (1, 1) or any(attribute(last, "pads", [0])):
        return None
    return first, before, after, last


def _idle(
    known: dict[str, Array], first: NodeProto, before: NodeProto, depthwise: NodeProto, after: NodeProto
) -> tuple[Array, Array]:
    """The value of each channel behind the depthwise convolution were its input nothing, and whether it always is that.

    It is where the depthwise weights are next to nothing, or what they are given is zero for every picture.
    """
    entering = np.abs(known[first.input[1]]).reshape(len(known[first.input[1]]), -1).max(axis=1)
    weights = np.abs(known[depthwise.input[1]]).reshape(len(entering), -1).max(axis=1)
    given = _activated(known, before, known[first.input[2]].astype(np.float64))
    dead = (entering <= _NOTHING * entering.max()) & (np.abs(given) <= _NOTHING)
    value = _activated(known, after, known[depthwise.input[2]].astype(np.float64))
    return value, (weights <= _NOTHING * weights.max()) | dead


def _activated(known: dict[str, Array], node: NodeProto, x: Array) -> Array:
    if node.op_type == "Relu":
        return np.maximum(x, 0)
    if node.op_type == "Clip":
        low, high = (known.get(name) for name in (*node.input[1:3], "", "")[:2])
        return np.clip(x, attribute(node, "min", low), attribute(node, "max", high))
    slope = attribute(node, "alpha", 0.01) if node.op_type == "LeakyRelu" else known[node.input[1]].reshape(-1)
    return np.where(x >= 0, x, x * slope)


def _only(readers: dict[str, list[NodeProto]], name: str) -> NodeProto | None:
    found = readers.get(name, [])
    return found[0] if len(found) == 1 else None


def _put(graph: GraphProto, known: dict[str, Array], node: NodeProto, position: int, array: Array) -> None:
    """Give a node another constant."""
    name = add_constant(graph, f"{node.output[0]}_kept_{position}", array)
    known[name] = array
    if position < len(node.input):
        node.input[position] = name
    else:
        node.input.append(name)
