"""Rewrites of published graphs, each exact in real arithmetic. Every function changes the graph it is given.

Each returns how many places it changed, for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from facefleet.models.build.graph import (
    Array,
    add_constant,
    attribute,
    constants,
    consumers,
    dims,
    drop_dead,
    producers,
    prune,
    replace_nodes,
    set_attribute,
)


def drop_stale_inputs(graph: GraphProto) -> int:
    """Take out graph inputs that are initializers (never folded by runtimes) or that nothing reads."""
    initializers = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    kept = [value for value in graph.input if value.name not in initializers and value.name in read]
    dropped = len(graph.input) - len(kept)
    if dropped:
        del graph.input[:]
        graph.input.extend(kept)
    return dropped


def fold_dequantized(graph: GraphProto) -> int:
    """Replace DequantizeLinear of constants, and Reshape of constants, by float32 constants: y = (x - zero) * scale."""
    known = constants(graph)
    kept = []
    folded = 0
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and all(name in known for name in node.input if name):
            value = _dequantized(node, [known[name] if name else None for name in node.input])
        elif node.op_type == "Reshape" and all(name in known for name in node.input):
            data, shape = (known[name] for name in node.input)
            target = [data.shape[i] if size == 0 else int(size) for i, size in enumerate(shape)]
            value = data.reshape(target)
        else:
            kept.append(node)
            continue
        known[node.output[0]] = value
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), node.output[0]))
        folded += 1
    if folded:
        replace_nodes(graph, kept)
        prune(graph)
    return folded


def _dequantized(node: NodeProto, inputs: list[Array | None]) -> Array:
    values, scale = inputs[0], inputs[1]
    assert values is not None
    assert scale is not None
    zero = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros_like(scale, dtype=np.int32)
    axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)
    # A scale of one element is for the whole tensor, also where a block size is given (biases of published files).
    spread = [_spread(each, values.shape, axis, block) for each in (scale, zero)]
    return (values.astype(np.float32) - spread[1].astype(np.float32)) * spread[0].astype(np.float32)


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == len(shape) and block:
        repeated = np.repeat(parameter, block, axis=axis)
        return np.take(repeated, np.arange(shape[axis]), axis=axis)
    return parameter.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def scale_instead_of_size(model: ModelProto, measure: Callable[[Sequence[str]], Sequence[Array]]) -> int:
    """Turn Resize and Upsample to a size that was fixed at export into such by a fixed factor.

    Args:
        model: A graph whose input has a fixed height and width.
        measure: Runs the graph once at that size and gives the values of the tensors named.
    """
    graph = model.graph
    known = constants(graph)
    found = [
        node for node in graph.node if node.op_type in ("Resize", "Upsample") and not _factor_is_fixed(node, known)
    ]
    if not found:
        return 0
    values = measure([name for node in found for name in (node.input[0], node.output[0])])
    for node, source, target in zip(found, values[::2], values[1::2], strict=True):
        factors = np.array([b / a for a, b in zip(source.shape, target.shape, strict=True)], np.float32)
        scales = add_constant(graph, f"{node.output[0]}_scales", factors)
        inputs = [node.input[0], scales] if node.op_type == "Upsample" else [*node.input[:2], scales]
        del node.input[:]
        node.input.extend(inputs)
    drop_dead(graph)
    return len(found)


def _factor_is_fixed(node: NodeProto, known: dict[str, Array]) -> bool:
    if node.op_type == "Upsample":
        return node.input[1] in known
    return len(node.input) < 4 and len(node.input) > 2 and node.input[2] in known


def free_dimensions(graph: GraphProto, *, size: bool) -> int:
    """Make the batch of inputs and outputs free, and height and width of the input where `size`."""
    for value in graph.input:
        shape = value.type.tensor_type.shape.dim
        shape[0].dim_param = "batch"
        if size:
            shape[2].dim_param, shape[3].dim_param = "height", "width"
    for position, value in enumerate(graph.output):
        # A detector's output is rows of a picture, however the published file declares it.
        width = value.type.tensor_type.shape.dim[-1].dim_value
        wanted: list[str | int] = ["batch", f"rows_{position}", width] if size else ["batch", *dims(value)[1:]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, wanted))
    del graph.value_info[:]
    return len(graph.input)


def batch_reshapes(graph: GraphProto) -> int:
    """Let Reshapes of a batch of one keep whatever batch comes: a leading 1 becomes 0 (copy), the rest stays.

    A fully fixed shape (1, rows, c) becomes (0, -1, c), so that the size is free too.
    """
    known = constants(graph)
    changed = 0
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in known or node.input[0] in known:
            continue
        shape = [int(size) for size in known[node.input[1]]]
        if len(shape) < 2 or shape[0] != 1:
            continue
        if -1 not in shape:
            shape[1] = -1
        node.input[1] = add_constant(graph, f"{node.output[0]}_shape", np.array([0, *shape[1:]], np.int64))
        changed += 1
    return changed


def separate_heads(graph: GraphProto) -> int:
    """Undo heads that mix the pictures of a batch: Transpose (2, 3, 0, 1) then Reshape (-1, c).

    There, row = (position * n + picture) * anchors + anchor. Transpose (0, 2, 3, 1) then Reshape (0, -1, c) gives the
    rows of each picture on their own; for a batch of one both are the same rows in the same order.
    """
    known = constants(graph)
    readers = consumers(graph)
    changed = 0
    for node in graph.node:
        if node.op_type != "Transpose" or list(attribute(node, "perm", [])) != [2, 3, 0, 1]:
            continue
        for reader in readers.get(node.output[0], []):
            if reader.op_type == "Reshape" and reader.input[1] in known:
                width = int(known[reader.input[1]][-1])
                reader.input[1] = add_constant(graph, f"{reader.output[0]}_shape", np.array([0, -1, width], np.int64))
        set_attribute(node, "perm", [0, 2, 3, 1])
        changed += 1
    return changed


def merge_siblings(model: ModelProto) -> int:
    """Join convolutions of the same input and geometry into one, and split its output.

    Heads for score, box and landmarks have few channels each, which processors round up to whole vectors; joined
    they are rounded up once. Weights and biases are concatenated along the output channels.
    """
    graph = model.graph
    known = constants(graph)
    groups: dict[tuple[object, ...], list[NodeProto]] = {}
    for node in graph.node:
        if node.op_type == "Conv" and len(node.input) == 3 and attribute(node, "group", 1) == 1:
            weight, bias = (known.get(name) for name in node.input[1:])
            if weight is not None and bias is not None:
                geometry = sorted((each.name, str(attribute(node, each.name))) for each in node.attribute)
                groups.setdefault((node.input[0], weight.shape[1:], *geometry), []).append(node)
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    nodes = list(graph.node)
    joined = 0
    for (source, *_), group in groups.items():
        if len(group) < 2:
            continue
        weight = np.concatenate([known[node.input[1]] for node in group])
        bias = np.concatenate([known[node.input[2]] for node in group])
        sizes = [len(known[node.input[2]]) for node in group]
        stem = f"{group[0].output[0]}_joined"
        conv = helper.make_node(
            "Conv",
            [str(source), add_constant(graph, f"{stem}_w", weight), add_constant(graph, f"{stem}_b", bias)],
            [stem],
        )
        conv.attribute.extend(group[0].attribute)
        outputs = [node.output[0] for node in group]
        if opset >= 13:
            split = helper.make_node(
                "Split", [stem, add_constant(graph, f"{stem}_sizes", np.array(sizes))], outputs, axis=1
            )
        else:
            split = helper.make_node("Split", [stem], outputs, axis=1, split=sizes)
        at = min(nodes.index(node) for node in group)
        nodes[at:at] = [conv, split]
        for node in group:
            nodes.remove(node)
        joined += len(group)
    if joined:
        replace_nodes(graph, nodes)
        prune(graph)
    return joined


def prelu_as_convolutions(graph: GraphProto) -> int:
    """PRelu(x) = s * x + (1 - s) * Relu(x), both products as 1 x 1 depthwise convolutions.

    ONNX Runtime's CPU kernel for PRelu is slow; its depthwise convolutions are not.
    """
    known = constants(graph)
    made = producers(graph)
    nodes = []
    changed = 0
    for node in graph.node:
        slope = known.get(node.input[1]) if node.op_type == "PRelu" else None
        if slope is None or slope.size == 1 or slope.size != slope.shape[0] or node.input[0] not in made:
            nodes.append(node)
            continue
        x, y, channels = node.input[0], node.output[0], slope.size
        linear = add_constant(graph, f"{y}_slope", slope.reshape(channels, 1, 1, 1))
        rest = add_constant(graph, f"{y}_rest", (1 - slope).reshape(channels, 1, 1, 1).astype(slope.dtype))
        nodes += [
            helper.make_node("Relu", [x], [f"{y}_relu"]),
            helper.make_node("Conv", [x, linear], [f"{y}_a"], kernel_shape=[1, 1], group=channels),
            helper.make_node("Conv", [f"{y}_relu", rest], [f"{y}_b"], kernel_shape=[1, 1], group=channels),
            helper.make_node("Add", [f"{y}_a", f"{y}_b"], [y]),
        ]
        changed += 1
    if changed:
        replace_nodes(graph, nodes)
        prune(graph)
    return changed


def fold_normalizations(graph: GraphProto) -> int:
    """Fold a BatchNormalization behind a convolution into its weights and bias."""
    known = constants(graph)
    made, readers = producers(graph), consumers(graph)
    outputs = {value.name for value in graph.output}
    dropped = []
    for node in graph.node:
        conv = made.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or len(readers[node.input[0]]) != 1 or node.input[0] in outputs:
            continue
        if not all(name in known for name in (*conv.input[1:], *node.input[1:5])):
            continue
        scale, shift, mean, variance = (known[name].astype(np.float64) for name in node.input[1:5])
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        weight = known[conv.input[1]].astype(np.float64)
        bias = known[conv.input[2]].astype(np.float64) if len(conv.input) > 2 else 0.0
        y = node.output[0]
        folded = (weight * factor[:, None, None, None]).astype(np.float32)
        moved = ((bias - mean) * factor + shift).astype(np.float32)
        names = [add_constant(graph, f"{y}_weight", folded), add_constant(graph, f"{y}_bias", moved)]
        del conv.input[1:]
        conv.input.extend(names)
        conv.output[0] = y
        dropped.append(node)
    if dropped:
        replace_nodes(graph, [node for node in graph.node if not any(node is each for each in dropped)])
        prune(graph)
    return len(dropped)
