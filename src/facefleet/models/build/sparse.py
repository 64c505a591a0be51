"""The last convolutions of an SCRFD graph left out, to be computed where there are faces and nowhere else.

A head ends in a convolution to 2 scores, 8 distances and 20 offsets a cell, of which all but a few cells in ten
thousand are thrown away. Here the graph ends in the scores, before their sigmoid, and in what that convolution read;
`models.detectors.sparse` computes the rest. A convolution to two channels costs a processor as much as one to sixteen:
the scores come from a 1 x 1 convolution with a channel for each place of the kernel, whose results are moved into
their places and added up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from facefleet.errors import GraphError
from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import (
    Array,
    add_constant,
    attribute,
    constants,
    consumers,
    dims,
    drop_dead,
    producers,
)
from facefleet.models.detectors.base import DetectorHead
from facefleet.models.detectors.scrfd import ScrfdHead
from facefleet.models.detectors.sparse import LastLayer, SparseHead
from facefleet.types import F32Array

_LANES = 16
_TOLERANCE = 1e-4  # of the largest value: float32 sums in another order


def leave_out_last(model: ModelProto) -> tuple[ModelProto, SparseHead] | None:
    """Leave the last convolutions of an SCRFD graph out.

    Args:
        model: A prepared graph, whose convolutions of one head are joined.

    Returns:
        A graph with the outputs ``logits``, (n, cells), and ``features_0``..., (n, h, w, c), with what computes the
        rest; None where the graph does not end in such convolutions, one for each stride.
    """
    changed = ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    head = ScrfdHead([(value.name, int(dims(value)[-1])) for value in graph.output])
    names = [value.name for value in graph.output]
    kinds = [[names[at] for at in kind] for kind in head.kinds]
    found = [_last(graph, [kind[level] for kind in kinds if kind]) for level in range(len(head.strides))]
    layers, logits, features, before = [], [], [], []
    for level, conv in enumerate(found):
        if conv is None:
            return None
        known = constants(graph)
        weight, bias = known[conv.input[1]], known[conv.input[2]]
        layers.append(LastLayer.of(weight, bias, head.strides[level], head.anchors))
        logits.append(_scores(graph, conv, weight[: head.anchors], bias[: head.anchors], level))
        features.append(f"features_{level}")
        before += _way_to(graph, conv.input[0])
        graph.node.append(helper.make_node("Transpose", [conv.input[0]], [features[-1]], perm=[0, 2, 3, 1]))
    graph.node.append(helper.make_node("Concat", logits, ["logits"], axis=1))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "cells"]))
    for level, (name, layer) in enumerate(zip(features, layers, strict=True)):
        shape = ["batch", f"rows_{level}", f"columns_{level}", layer.channels]
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    drop_dead(graph)
    return changed, SparseHead(layers, head.anchors, before)


def check_left_out(whole: ModelProto, rest: ModelProto, head: SparseHead, pictures: F32Array) -> float:
    """Compare the candidates of every cell with those of the graph as it was.

    Args:
        whole: With the last convolutions.
        rest: Without.
        head: What computes them.
        pictures: (n, 3, h, w) float32 network inputs.

    Returns:
        The largest difference, relative to the largest value of its kind.

    Raises:
        GraphError: They differ.
    """
    dense = ScrfdHead([(value.name, int(dims(value)[-1])) for value in whole.graph.output])
    height, width = pictures.shape[2:]
    worst = 0.0
    given = [session(model).run(None, {"images": pictures}) for model in (whole, rest)]
    readers: tuple[DetectorHead, DetectorHead] = (dense, head)
    for row in range(len(pictures)):
        want, got = (
            reader.candidates(outputs, row, width, height, -1.0) for reader, outputs in zip(readers, given, strict=True)
        )
        for a, b in ((want.scores, got.scores), (want.boxes, got.boxes), (want.landmarks, got.landmarks)):
            if a is not None and b is not None:
                worst = max(worst, float(np.abs(a - b).max()) / max(float(np.abs(a).max()), 1e-6))
    if not worst <= _TOLERANCE:
        raise GraphError(f"a head without its last layer differs by {worst:.2e} of the largest value")
    return worst


def _last(graph: GraphProto, outputs: list[str]) -> NodeProto | None:
    """The joined convolution that ends in `outputs` by Split, Transpose, Reshape and, for scores, Sigmoid."""
    made, readers, known = producers(graph), consumers(graph), constants(graph)
    splits = []
    for position, name in enumerate(outputs):
        node = made[name]
        for kind in ("Sigmoid", "Reshape", "Transpose") if position == 0 else ("Reshape", "Transpose"):
            if node.op_type != kind or (kind == "Transpose" and list(attribute(node, "perm", [])) != [0, 2, 3, 1]):
                return None
            source = made.get(node.input[0])
            if source is None or len(readers[node.input[0]]) != 1:
                return None
            node, at = source, node.input[0]
        splits.append((node, at))
    split = splits[0][0]
    if split.op_type != "Split" or [at for _, at in splits] != list(split.output):
        return None
    conv = made.get(split.input[0])
    if conv is None or conv.op_type != "Conv" or len(conv.input) != 3 or len(readers[split.input[0]]) != 1:
        return None
    weight = known.get(conv.input[1])
    if weight is None or conv.input[2] not in known:
        return None
    height, width = weight.shape[2:]
    steps = {*attribute(conv, "strides", [1]), *attribute(conv, "dilations", [1])}
    plain = attribute(conv, "group", 1) == 1 and steps == {1}
    centered = height == width and list(attribute(conv, "pads", [0] * 4)) == [height // 2] * 4 and height % 2
    return conv if plain and centered else None


def _way_to(graph: GraphProto, tensor: str) -> list[str]:
    """The convolutions, by name or else by output, that lead to a tensor and to nothing else."""
    made, readers = producers(graph), consumers(graph)
    found = []
    node = made.get(tensor)
    while node is not None and node.op_type in ("Conv", "Relu", "Clip", "PRelu", "LeakyRelu"):
        if node.op_type == "Conv":
            found.append(node.name or node.output[0])
        node = made.get(node.input[0]) if len(readers[node.input[0]]) == 1 else None
    return found


def _scores(graph: GraphProto, conv: NodeProto, weight: Array, bias: Array, level: int) -> str:
    """Add nodes for the scores of a level, (n, cells), before their sigmoid."""
    anchors, channels, side, _ = weight.shape
    lanes = -(-anchors * side * side // _LANES) * _LANES
    taps = np.zeros((lanes, channels, 1, 1), np.float32)
    taps[: anchors * side * side, :, 0, 0] = weight.transpose(2, 3, 0, 1).reshape(-1, channels)
    places: NDArray[Any] = np.zeros((lanes, 1, side, side), np.float32)
    added: NDArray[Any] = np.zeros((anchors, lanes, 1, 1), np.float32)
    for lane in range(anchors * side * side):
        place, anchor = divmod(lane, anchors)
        places[lane, 0, place // side, place % side] = 1
        added[anchor, lane] = 1
    name = f"logits_{level}"

    def constant(kind: str, value: NDArray[Any]) -> str:
        return add_constant(graph, f"{name}_{kind}", value)

    pads = [side // 2] * 4
    graph.node.extend(
        [
            helper.make_node("Conv", [conv.input[0], constant("taps", taps)], [f"{name}_a"], kernel_shape=[1, 1]),
            helper.make_node(
                "Conv",
                [f"{name}_a", constant("places", places)],
                [f"{name}_b"],
                kernel_shape=[side, side],
                pads=pads,
                group=lanes,
            ),
            helper.make_node(
                "Conv",
                [f"{name}_b", constant("added", added), constant("bias", bias)],
                [f"{name}_c"],
                kernel_shape=[1, 1],
            ),
            helper.make_node("Transpose", [f"{name}_c"], [f"{name}_d"], perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [f"{name}_d", constant("shape", np.array([0, -1], np.int64))], [name]),
        ]
    )
    return name
