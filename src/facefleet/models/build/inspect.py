"""What an ONNX file is: real dimensions, fixed batch, layout, operators. Reads the file, runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, load, shape_inference

from facefleet.errors import GraphError
from facefleet.models.build.graph import attribute, constants, dims
from facefleet.models.build.trial import Trial, try_batches
from facefleet.models.build.work import gflop_by_layer

_PROBE_PX = 640


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What was found in an ONNX file.

    Attributes:
        path: The file.
        opset: Version of the default operator set.
        inputs: Real inputs and their dimensions.
        outputs: Outputs and their dimensions.
        stale_inputs: Declared inputs that are weights or that nothing reads.
        layout: Family recognised, in words; ``unknown`` where none is.
        fixed_batch: Why a batch above one fails or answers wrongly; empty where nothing speaks against it.
        operators: Operator -> count.
        parameters: Numbers in all weights.
        quantized: Weights stored as integers.
        gflop: Billions of multiplications and additions for one picture in convolutions and matrix products; None where
            shapes cannot be inferred.
        gflop_at: Height and width that is for, in pixels.
    """

    path: Path
    opset: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    stale_inputs: list[str]
    layout: str
    fixed_batch: list[str]
    operators: dict[str, int]
    parameters: int
    quantized: int
    gflop: float | None
    gflop_at: tuple[int, int]


def inspect_model(path: Path) -> ModelReport:
    """Look into an ONNX file.

    Raises:
        GraphError: It cannot be read as one.
    """
    try:
        model = load(path)
    except Exception as error:  # protobuf's exceptions share no base class
        raise GraphError(f"{path}: not an ONNX file ({type(error).__name__}: {error})") from error
    graph = model.graph
    if not graph.node or not graph.output:
        raise GraphError(f"{path}: not an ONNX file, or an empty graph")
    initializers = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    real = {v.name: dims(v) for v in graph.input if v.name not in initializers and v.name in read}
    outputs = _output_dims(model)
    known = constants(graph)
    sides = [dim if isinstance(dim, int) else _PROBE_PX for dim in next(iter(real.values()), [])[2:4]]
    work = gflop_by_layer(model, *sides) if len(sides) == 2 else None
    return ModelReport(
        path=path,
        opset=max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0),
        inputs=real,
        outputs=outputs,
        stale_inputs=[v.name for v in graph.input if v.name not in real],
        layout=recognize(list(real.values()), list(outputs.values())),
        fixed_batch=_fixed_batch(model, real),
        operators=dict(Counter(node.op_type for node in graph.node).most_common()),
        parameters=sum(int(np.prod(tensor.dims)) for tensor in graph.initializer),
        quantized=sum(int(known[t.name].size) for t in graph.initializer if known[t.name].dtype in (np.int8, np.uint8)),
        gflop=None if work is None else sum(work.values()),
        gflop_at=(sides[0], sides[1]) if len(sides) == 2 else (0, 0),
    )


def verified_batch(path: Path, most: int = 16) -> Trial:
    """How large a batch ONNX Runtime runs a graph at, up to `most`, with noise.

    Raises:
        GraphError: It is no graph with one picture input.
    """
    report = inspect_model(path)
    if len(report.inputs) != 1 or report.gflop_at == (0, 0):
        raise GraphError(f"{path}: inputs {report.inputs}: not one picture input")
    pictures = np.random.default_rng(0).uniform(-1, 1, (2, 3, *report.gflop_at)).astype(np.float32)
    batches = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= most]
    return try_batches(load(path), batches, pictures)


def _output_dims(model: ModelProto) -> dict[str, list[int | str]]:
    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception:  # inference is an aid; declared shapes are shown without it
        inferred = model
    declared = {value.name: dims(value) for value in model.graph.output}
    found = {value.name: dims(value) for value in inferred.graph.output}
    return {name: found.get(name) or shape for name, shape in declared.items()}


def _fixed_batch(model: ModelProto, inputs: dict[str, list[int | str]]) -> list[str]:
    """Reasons, each with the node it is about."""
    reasons = [f"input {name} has a batch of {shape[0]}" for name, shape in inputs.items() if isinstance(shape[0], int)]
    known = constants(model.graph)
    for node in model.graph.node:
        name = node.name or node.output[0]
        if node.op_type == "Reshape" and node.input[1] in known and node.input[0] not in known:
            shape = [int(size) for size in known[node.input[1]]]
            if len(shape) > 1 and shape[0] == 1:
                reasons.append(f"Reshape {name} to {shape} has a batch of 1")
        if node.op_type == "Transpose" and list(attribute(node, "perm", [])) == [2, 3, 0, 1]:
            reasons.append(f"Transpose {name} (2, 3, 0, 1) mixes the pictures of a batch")
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] in known:
            reasons.append(f"Resize {name} goes to the fixed size {known[node.input[3]].tolist()}")
    return reasons


def recognize(inputs: Sequence[Sequence[int | str]], outputs: Sequence[Sequence[int | str]]) -> str:
    """The family that inputs and outputs of these dimensions belong to, in words."""
    widths = Counter(shape[-1] for shape in outputs if shape)
    scores, boxes, points, pairs = (widths.get(width, 0) for width in (1, 4, 10, 2))
    if (scores, boxes, points) == (6, 3, 3):
        return "yunet: strides 8, 16, 32, with landmarks"
    if scores in (3, 5) and boxes == scores and points in (0, scores):
        anchors, strides = (2, "8, 16, 32") if scores == 3 else (1, "8, 16, 32, 64, 128")
        return f"scrfd: strides {strides}, {anchors} anchors a cell, {'with' if points else 'without'} landmarks"
    if (boxes, pairs, points) == (1, 1, 1):
        return "retinaface: boxes, scores and landmarks of all priors"
    if len(inputs) == 1 and len(inputs[0]) == 4 and outputs and len(outputs[0]) == 2:
        height, width = inputs[0][2:4]
        size = outputs[0][1]
        second = ", with feature norm (adaface)" if len(outputs) == 2 and outputs[1][-1:] == [1] else ""
        return f"embedder: {height} x {width} chips, {size} dimensions{second}"
    return "unknown"
