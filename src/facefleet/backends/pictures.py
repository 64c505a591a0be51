"""Layout, channel order and normalization: done here, or put in front of a graph that then reads uint8 pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from facefleet.backends.base import InputContract
from facefleet.types import F32Array, U8Array


def network_input(pictures: U8Array, contract: InputContract) -> F32Array:
    """Pictures as a network wants them.

    Args:
        pictures: (n, h, w, 3) uint8 RGB.
        contract: What the network expects.

    Returns:
        (n, 3, h, w) float32, a new array.
    """
    n, height, width, _ = pictures.shape
    planes, values = (np.empty((n, 3, height, width), kind) for kind in (np.uint8, np.float32))
    for picture, into in zip(pictures, planes, strict=True):
        cv2.split(picture, list(into if contract.color == "rgb" else into[::-1]))
    mean, std = np.array(contract.mean, np.float64), np.array(contract.std, np.float64)
    alike = len(set(contract.mean)) == len(set(contract.std)) == 1
    shape = (1, 1, -1, width) if alike else planes.shape
    for source, target in zip(planes.reshape(shape), values.reshape(shape), strict=True):
        for channel, scale, shift in zip(range(len(source)), 1 / std, -mean / std, strict=False):
            # One pass, where a cast, a product and a sum would be three.
            cv2.addWeighted(source[channel], scale, source[channel], 0, shift, dst=target[channel], dtype=cv2.CV_32F)
    return values


def with_picture_input(model: Path, contract: InputContract) -> bytes:
    """Put layout, channel order and normalization in front of a graph.

    Args:
        model: An ONNX file with one float32 NCHW input.
        contract: What that input expects.

    Returns:
        The serialized graph, whose input ``pictures`` is (n, h, w, 3) uint8 RGB.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    proto = onnx.load(model)
    graph = proto.graph
    target = graph.input[0].name
    mean, std = (np.array(each, np.float32) for each in (contract.mean, contract.std))
    constants: dict[str, NDArray[Any]] = {"pictures_scale": (1 / std).reshape(1, 3, 1, 1)}
    nodes = [
        # TensorRT wants float before anything else.
        helper.make_node("Cast", ["pictures"], ["pictures_float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pictures_float"], ["pictures_nchw"], perm=[0, 3, 1, 2]),
    ]
    last = "pictures_nchw"
    if contract.color == "bgr":
        graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0], np.int64), "pictures_order"))
        nodes.append(helper.make_node("Gather", [last, "pictures_order"], ["pictures_bgr"], axis=1))
        last = "pictures_bgr"
    moved = bool(mean.any())
    scaled = "pictures_scaled" if moved else target
    nodes.append(helper.make_node("Mul", [last, "pictures_scale"], [scaled]))
    if moved:
        constants["pictures_shift"] = (-mean / std).reshape(1, 3, 1, 1)
        nodes.append(helper.make_node("Add", [scaled, "pictures_shift"], [target]))
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("pictures", TensorProto.UINT8, ["n", "h", "w", 3]))
    return bytes(proto.SerializeToString())
