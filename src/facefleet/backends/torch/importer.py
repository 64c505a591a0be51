"""From an ONNX graph to a torch.fx module.

Owns the walk over the graph: constants become buffers or, where they are shapes, plain numbers; what depends on
constants alone is computed once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, numpy_helper
from torch import Tensor, fx

from facefleet.backends.torch.operators import FACTORIES
from facefleet.errors import GraphError


def module_from_onnx(model: ModelProto | Path) -> fx.GraphModule:
    """Import a graph.

    Args:
        model: One picture input (n, 3, h, w).

    Returns:
        A module in eval mode from one tensor to a tuple of tensors, in the order of the graph's outputs. Each call in
        its graph says in `meta["operator"]` which operator it was, and its attributes.

    Raises:
        GraphError: It has operators that are not known, or attributes that are not supported; they are named.
    """
    proto = onnx.load(model) if isinstance(model, Path) else model
    return _Importer(proto).module()


class _Importer:
    def __init__(self, model: ModelProto) -> None:
        self._proto = model
        self._opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        self._known: dict[str, Tensor] = {t.name: _tensor(t) for t in model.graph.initializer}
        self._graph = fx.Graph()
        self._root = torch.nn.Module()
        self._nodes: dict[str, fx.Node] = {}
        self._constants = 0

    def module(self) -> fx.GraphModule:
        graph = self._proto.graph
        unknown = sorted({node.op_type for node in graph.node} - FACTORIES.keys() - {"Constant"})
        if unknown:
            raise GraphError(
                f"operators {', '.join(unknown)} are not known to the torch backend",
                hint="use another backend, or export the network with other operators",
            )
        real = [value.name for value in graph.input if value.name not in self._known]
        if len(real) != 1:
            raise GraphError(f"expected one input, found {real}", hint="convert the graph first")
        self._nodes[real[0]] = self._graph.placeholder("images")
        for node in graph.node:
            self._add(node)
        self._graph.output(tuple(self._node(value.name) for value in graph.output))
        self._graph.eliminate_dead_code()
        module = fx.GraphModule(self._root, self._graph)
        module.delete_all_unused_submodules()
        return module.eval()

    def _add(self, node: NodeProto) -> None:
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Constant":
            self._known[node.output[0]] = _constant(attributes)
            return
        try:
            function = FACTORIES[node.op_type](attributes, self._opset)
        except GraphError as error:
            raise GraphError(
                f"{node.op_type} {node.name or node.output[0]}: {error.message}", hint=error.hint
            ) from error
        if all(not name or name in self._known for name in node.input):
            with torch.inference_mode(False), torch.no_grad():
                values = function(*(_plain_value(self._known[name]) if name else None for name in node.input))
            for name, value in zip(node.output, values if isinstance(values, tuple) else (values,), strict=False):
                self._known[name] = value if isinstance(value, Tensor) else torch.tensor(value)
            return
        arguments = tuple(self._argument(name, node.op_type) for name in node.input)
        made = self._graph.call_function(function, arguments)
        made.meta["operator"] = (node.op_type, attributes)
        if node.op_type == "Split":
            for position, name in enumerate(node.output):
                self._nodes[name] = self._graph.call_function(_item, (made, position))
        else:
            self._nodes[node.output[0]] = made

    def _argument(self, name: str, operator: str) -> Any:  # noqa: ANN401  # a node, numbers or None
        if not name or (name in self._known and self._known[name].numel() == 0):
            return None
        if name in self._known:
            value = _plain_value(self._known[name])
            if not isinstance(value, Tensor) or operator in ("Resize", "Upsample"):
                return value.tolist() if isinstance(value, Tensor) else value
        return self._node(name)

    def _node(self, name: str) -> fx.Node:
        if name in self._nodes:
            return self._nodes[name]
        if name not in self._known:
            raise GraphError(f"tensor {name} is read before it is made", hint="the graph is damaged; export it again")
        attribute = f"constant_{self._constants}"
        self._constants += 1
        self._root.register_buffer(attribute, self._known[name])
        self._nodes[name] = self._graph.get_attr(attribute)
        return self._nodes[name]


def _plain_value(value: Tensor) -> Any:  # noqa: ANN401  # numbers of whole type become plain ones
    return value if value.is_floating_point() or value.ndim > 1 else value.tolist()


def _item(parts: tuple[Tensor, ...], position: int) -> Tensor:
    return parts[position]


def _tensor(proto: Any) -> Tensor:  # noqa: ANN401  # a TensorProto
    array = numpy_helper.to_array(proto)
    if proto.data_type == onnx.TensorProto.BFLOAT16:  # numpy has no such type of its own
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _constant(attributes: dict[str, Any]) -> Tensor:
    if "value" in attributes:
        return _tensor(attributes["value"])
    key, value = next(iter(attributes.items()))
    kind = torch.float32 if "float" in key else torch.int64
    return torch.tensor(value, dtype=kind)
