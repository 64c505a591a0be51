"""fp16 and bf16 as part of the graph: casts around what runs in low precision.

Owns which nodes may be lowered: everything but the last fully connected layer and what follows it (normalizations,
norms, softmax), where an overflow would be final, and nodes the caller names. Weights of lowered nodes are stored in
the low type, so that a strongly typed runtime does as the graph says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from facefleet.errors import GraphError
from facefleet.models.build.graph import bf16_bits, constants, prune, replace_nodes

_TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
_LARGEST = {"fp16": 65504.0, "bf16": 3.38e38}
_DATA_ONLY = {
    "Resize": 1,
    "Upsample": 1,
    "Reshape": 1,
    "Split": 1,
    "Slice": 1,
    "Gather": 1,
    "Unsqueeze": 1,
    "Expand": 1,
}
"""Inputs after so many are sizes and places, never data."""
_KEPT = ("Shape", "Cast", "Constant", "ConstantOfShape", "QuantizeLinear", "DequantizeLinear")


def cast_graph(model: ModelProto, precision: Literal["fp16", "bf16"], high: Iterable[str] = ()) -> ModelProto:
    """Lower a graph.

    Args:
        model: Float32 graph.
        precision: The low type.
        high: Names of further nodes (or of their first outputs) that stay in float32.

    Returns:
        A copy; its inputs and outputs are float32 as before.

    Raises:
        GraphError: A weight does not fit the low type; the node is named.
    """
    lowered = ModelProto()
    lowered.CopyFrom(model)
    caster = _Caster(lowered, precision, frozenset(high))
    caster.run()
    prune(lowered.graph)
    return lowered


def tail(model: ModelProto) -> set[str]:
    """First outputs of the last fully connected layer and of what depends on it; of a detector, nothing.

    An embedder without a Gemm or MatMul has a convolution of the whole map in its place.
    """
    after: set[str] = set()
    kinds = ("Gemm", "MatMul", "Conv") if len(model.graph.output) == 1 else ("Gemm", "MatMul")
    last = next((n for n in reversed(model.graph.node) if n.op_type in kinds), None)
    for node in model.graph.node:
        if node is last or any(name in after for name in node.input):
            after.update(node.output)
    return after


class _Caster:
    def __init__(self, model: ModelProto, precision: str, high: frozenset[str]) -> None:
        self._graph = model.graph
        self._precision, self._type = precision, _TYPES[precision]
        self._known = constants(self._graph)
        kept = tail(model)
        self._high = {
            n.output[0] for n in self._graph.node if n.name in high or n.output[0] in high or n.output[0] in kept
        }
        self._floats = _float_tensors(model)
        self._copies: dict[tuple[str, int], str] = {}
        self._nodes: list[NodeProto] = []
        self._low: set[str] = set()

    def run(self) -> None:
        for node in list(self._graph.node):
            if node.op_type in _KEPT or node.output[0] in self._high or node.output[0] not in self._floats:
                self._take(node, TensorProto.FLOAT)
            else:
                self._take(node, self._type)
                self._low.update(node.output)
            self._nodes.append(node)
        for value in self._graph.output:
            if value.name in self._low:
                inner = f"{value.name}_{self._precision}"
                for node in self._nodes:
                    for names in (node.input, node.output):
                        for i, name in enumerate(names):
                            names[i] = inner if name == value.name else name
                self._nodes.append(helper.make_node("Cast", [inner], [value.name], to=TensorProto.FLOAT))
        del self._graph.value_info[:]
        replace_nodes(self._graph, self._nodes)

    def _take(self, node: NodeProto, wanted: int) -> None:
        """Give a node its float inputs in the wanted type."""
        data = _DATA_ONLY.get(node.op_type, len(node.input))
        for i, name in enumerate(node.input):
            if i >= data or name not in self._floats or node.op_type in ("Shape", "Cast"):
                continue
            is_low = name in self._low
            if is_low == (wanted == self._type):
                continue
            node.input[i] = self._as(name, wanted, node)

    def _as(self, name: str, wanted: int, node: NodeProto) -> str:
        key = (name, wanted)
        if key not in self._copies:
            copy = f"{name}_{self._precision if wanted == self._type else 'fp32'}"
            if name in self._known:
                self._store(copy, self._known[name], node)
            else:
                self._nodes.append(helper.make_node("Cast", [name], [copy], to=wanted))
            self._copies[key] = copy
        return self._copies[key]

    def _store(self, name: str, value: np.ndarray, node: NodeProto) -> None:
        largest = float(np.abs(value).max(initial=0))
        if largest > _LARGEST[self._precision]:
            where = f"{node.op_type} {node.name or node.output[0]}"
            raise GraphError(
                f"{where}: a weight of {largest:.3g} does not fit {self._precision}",
                hint="keep this layer in fp32, or use bf16",
            )
        if self._precision == "fp16":
            self._graph.initializer.append(numpy_helper.from_array(value.astype(np.float16), name))
            return
        self._graph.initializer.append(
            helper.make_tensor(name, TensorProto.BFLOAT16, value.shape, bf16_bits(value).tobytes(), raw=True)
        )


def _float_tensors(model: ModelProto) -> set[str]:
    """Names of all float32 tensors."""
    inferred = shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    found = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return found | {name for name, value in constants(model.graph).items() if value.dtype == np.float32}
