"""Layout, channel order and normalization as part of a graph, so that it reads uint8 pictures directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.backends.base import InputContract


def with_picture_input(model: Path, contract: InputContract, *, cast_first: bool = False) -> bytes:
    """Put layout, channel order and normalization in front of a graph.

    Args:
        model: An ONNX file with one float32 NCHW input.
        contract: What that input expects.
        cast_first: Whether uint8 must become float before anything else, as TensorRT wants it.

    Returns:
        The serialized graph, whose input ``pictures`` is (n, h, w, 3) uint8 RGB.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    proto = onnx.load(model)
    graph = proto.graph
    target = graph.input[0].name
    mean, std = np.array(contract.mean, np.float32), np.array(contract.std, np.float32)
    constants: dict[str, NDArray[Any]] = {}
    nodes, last = [], "pictures"
    if cast_first:
        nodes.append(helper.make_node("Cast", [last], ["pictures_cast"], to=TensorProto.FLOAT))
        last = "pictures_cast"
    nodes.append(helper.make_node("Transpose", [last], ["pictures_nchw"], perm=[0, 3, 1, 2]))
    last = "pictures_nchw"
    if contract.color == "bgr":
        constants["pictures_order"] = np.array([2, 1, 0], np.int64)
        nodes.append(helper.make_node("Gather", [last, "pictures_order"], ["pictures_bgr"], axis=1))
        last = "pictures_bgr"
    moved = bool(mean.any())
    scaled = "pictures_scaled" if moved else target
    opset = max(each.version for each in proto.opset_import if each.domain in ("", "ai.onnx"))
    if len(set(contract.std)) == 1 and opset >= 10 and not cast_first:
        # One pass instead of a cast and a product.
        constants["pictures_scale"] = 1 / std[0]
        nodes.append(helper.make_node("DequantizeLinear", [last, "pictures_scale"], [scaled]))
    else:
        constants["pictures_scale"] = (1 / std).reshape(1, 3, 1, 1)
        nodes.append(helper.make_node("Cast", [last], ["pictures_float"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", ["pictures_float", "pictures_scale"], [scaled]))
    if moved:
        constants["pictures_shift"] = (-mean / std).reshape(1, 3, 1, 1)
        nodes.append(helper.make_node("Add", [scaled, "pictures_shift"], [target]))
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("pictures", TensorProto.UINT8, ["n", "h", "w", 3]))
    return bytes(proto.SerializeToString())
