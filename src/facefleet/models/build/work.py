"""How much each layer of a graph computes. Reads graphs; runs one only where shapes cannot be inferred."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from facefleet.models.build.dynamic import inner_values
from facefleet.models.build.graph import constants
from facefleet.models.build.profile import sizes_at


def gflop_by_layer(model: ModelProto, height: int, width: int) -> dict[str, float] | None:
    """Billions of multiplications and additions for one picture.

    Args:
        model: One picture input.
        height: Rows of the picture in pixels.
        width: Columns.

    Returns:
        For each convolution and matrix product, by its name or else its first output; None if the shapes are found
        neither by inference nor by running the graph.
    """
    shape = (1, 3, height, width)
    weights = {name: value.shape for name, value in constants(model.graph).items()}
    layers = [
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in weights and node.input[0] not in weights
    ]
    sizes = sizes_at(model, shape)
    names = [node.output[0] for node in layers]
    if not all(sizes.get(name) and all(isinstance(size, int) for size in sizes[name]) for name in names):
        try:
            found = inner_values(model, names, np.zeros(shape, np.float32))
        except Exception:  # whatever the runtime says: the figures are an aid
            return None
        sizes |= {name: list(value.shape) for name, value in zip(names, found, strict=True)}
    work = {}
    for node in layers:
        out, weight = [int(size) for size in sizes[node.output[0]]], weights[node.input[1]]
        inner = np.prod(weight[1:]) if node.op_type == "Conv" else np.prod(weight) / out[-1]
        work[node.name or node.output[0]] = 2e-9 * float(np.prod(out)) * float(inner)
    return work
