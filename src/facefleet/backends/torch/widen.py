"""Channel counts that matrix units can take, for a graph that runs in half precision on a CUDA device.

cuDNN falls back to kernels many times slower where channels are not a multiple of eight. Zeros are added where nothing
sees them, and the small convolutions of a head that read the same map become one. Answers stay the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

Array = NDArray[Any]
_LANES = 8
_KEEP_ZERO = ("Relu", "LeakyRelu", "MaxPool", "AveragePool")


def widen(model: ModelProto) -> int:
    """Change a graph in place.

    Returns:
        Convolutions that were given more channels, or became one with others.
    """
    editor = _Editor(model)
    changed = editor.merge_heads() + editor.pad()
    if changed:
        del model.graph.value_info[:]
    return changed


class _Editor:
    def __init__(self, model: ModelProto) -> None:
        self._graph = model.graph
        self._opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        self._known: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in self._graph.initializer}
        self._outputs = {value.name for value in self._graph.output}

    def merge_heads(self) -> int:
        """Convolutions of one kind over one map, some of which have an odd number of channels, become one."""
        alike: dict[Any, list[NodeProto]] = {}
        for node in filter(self._plain, self._graph.node):
            attributes = tuple(sorted(each.SerializeToString() for each in node.attribute))
            alike.setdefault((node.input[0], self._weight(node).shape[1:], attributes), []).append(node)
        groups = [group for group in alike.values() if len(group) > 1 and any(map(self._odd, group))]
        first = {group[0].output[0]: group for group in groups}
        gone = {node.output[0] for group in groups for node in group}
        nodes: list[NodeProto] = []
        for node in self._graph.node:
            if node.output[0] in first:
                nodes += self._merged(first[node.output[0]])
            elif node.output[0] not in gone:
                nodes.append(node)
        self._replace(nodes)
        return len(gone)

    def pad(self) -> int:
        """Zero channels between convolutions, up to the next multiple of eight."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self._graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        padded = 0
        for node in filter(self._plain, self._graph.node):
            behind = self._convolutions_behind(node.output[0], readers) if self._odd(node) else None
            if not behind:
                continue
            more = -len(self._weight(node)) % _LANES
            self._set(node, _grown(self._weight(node), more, 0), _grown(self._bias(node), more, 0))
            for each in behind:
                self._set(each, _grown(self._weight(each), more, 1), self._bias(each))
            padded += 1
        return padded

    def _convolutions_behind(self, name: str, readers: dict[str, list[NodeProto]]) -> list[NodeProto] | None:
        """All that read a map, through what keeps zeros zero; None where something else does."""
        if name in self._outputs:
            return None
        found: list[NodeProto] = []
        for node in readers.get(name, ()):
            if self._plain(node) and node.input[0] == name:
                found.append(node)
            elif node.op_type in _KEEP_ZERO and len(node.output) == 1:
                further = self._convolutions_behind(node.output[0], readers)
                if further is None:
                    return None
                found += further
            else:
                return None
        return found

    def _merged(self, group: list[NodeProto]) -> list[NodeProto]:
        """One convolution, and its channels divided among the names that are read."""
        head, sizes = group[0], [len(self._weight(node)) for node in group]
        more = -sum(sizes) % _LANES
        whole, rest = f"{head.output[0]}_and_others", f"{head.output[0]}_nothing"
        made = NodeProto()
        made.CopyFrom(head)
        made.output[0] = whole
        weight = np.concatenate([self._weight(node) for node in group])
        bias = np.concatenate([self._bias(node) for node in group])
        self._set(made, _grown(weight, more, 0), _grown(bias, more, 0))
        names = [node.output[0] for node in group] + ([rest] if more else [])
        counts = np.array(sizes + ([more] if more else []), np.int64)
        if self._opset < 13:
            return [made, helper.make_node("Split", [whole], names, axis=1, split=counts.tolist())]
        return [made, helper.make_node("Split", [whole, self._constant(f"{whole}_counts", counts)], names, axis=1)]

    def _plain(self, node: NodeProto) -> bool:
        """Whether it is a convolution of one group whose numbers are known."""
        groups = next((each.i for each in node.attribute if each.name == "group"), 1)
        return node.op_type == "Conv" and groups == 1 and all(name in self._known for name in node.input[1:] if name)

    def _odd(self, node: NodeProto) -> bool:
        return len(self._weight(node)) % _LANES != 0

    def _weight(self, node: NodeProto) -> Array:
        return self._known[node.input[1]]

    def _bias(self, node: NodeProto) -> Array:
        if len(node.input) > 2 and node.input[2]:
            return self._known[node.input[2]]
        return np.zeros(len(self._weight(node)), self._weight(node).dtype)

    def _set(self, node: NodeProto, weight: Array, bias: Array) -> None:
        name = node.output[0]
        wide, offset = self._constant(f"{name}_weight", weight), self._constant(f"{name}_bias", bias)
        del node.input[1:]
        node.input.extend([wide, offset])

    def _constant(self, name: str, value: Array) -> str:
        while name in self._known:
            name += "_"
        self._known[name] = value
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _replace(self, nodes: list[NodeProto]) -> None:
        kept = [NodeProto() for _ in nodes]
        for copy, node in zip(kept, nodes, strict=True):
            copy.CopyFrom(node)
        del self._graph.node[:]
        self._graph.node.extend(kept)


def _grown(values: Array, more: int, axis: int) -> Array:
    """Zeros after the last one along an axis."""
    shape = list(values.shape)
    shape[axis] = more
    return np.concatenate([values, np.zeros(shape, values.dtype)], axis=axis)
