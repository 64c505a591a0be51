"""Small face networks as ONNX graphs, for tests of the fused path."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Nodes one after another, each named by its output."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list = []
        self.constants: list = []

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def conv(self, x: str, inputs: int, outputs: int, size: int = 3, stride: int = 1, **attributes: object) -> str:
        weight = self.random.normal(0, (size * size * inputs) ** -0.5, (outputs, inputs, size, size))
        pads = attributes.pop("pads", [size // 2] * 4)
        return self.node(
            "Conv", x, self.constant(weight), self.constant(self.random.normal(0, 0.2, outputs)),
            pads=pads, strides=[stride, stride], **attributes,
        )  # fmt: skip

    def norm(self, x: str, channels: int, scale: np.ndarray | None = None, shift: np.ndarray | None = None) -> str:
        scale = self.random.uniform(0.5, 1.5, channels) if scale is None else scale
        shift = self.random.normal(0, 0.5, channels) if shift is None else shift
        mean, variance = self.random.normal(0, 0.3, channels), self.random.uniform(0.5, 1.5, channels)
        return self.node("BatchNormalization", x, *map(self.constant, (scale, shift, mean, variance)), epsilon=1e-5)

    def prelu(self, x: str, channels: int, low: float = -0.2, high: float = 0.8) -> str:
        return self.node("PRelu", x, self.constant(self.random.uniform(low, high, (channels, 1, 1))))

    def add(self, a: str, b: str) -> str:
        return self.node("Add", a, b)

    def head(self, x: str, width: int, outputs: int = 32, *, norm: bool = True) -> str:
        flat = self.node("Flatten", x, axis=1)
        weight, bias = self.random.normal(0, width**-0.5, (outputs, width)), self.random.normal(0, 1, outputs)
        made = self.node("Gemm", flat, self.constant(weight), self.constant(bias), transB=1)
        return self.norm(made, outputs) if norm else made

    def model(self, output: str):
        graph = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 16, 16])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", None])],
            self.constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual(build: Builder, x: str, inputs: int, outputs: int, stride: int, **norm: np.ndarray) -> str:
    """IResNet's block."""
    inner = build.prelu(build.conv(build.norm(x, inputs, **norm), inputs, outputs), outputs)
    inner = build.norm(build.conv(inner, outputs, outputs, stride=stride), outputs)
    if stride == 1 and inputs == outputs:
        return build.add(inner, x)
    return build.add(inner, build.norm(build.conv(x, inputs, outputs, 1, stride), outputs))


def small_iresnet(seed: int = 0, **norm: np.ndarray):
    """16 x 16 pictures, three blocks, 32 numbers; `norm` sets the second block's first normalization."""
    build = Builder(seed)
    x = build.prelu(build.norm(build.conv("images", 3, 32), 32), 32)
    x = residual(build, x, 32, 64, 2)
    x = residual(build, x, 64, 64, 1, **norm)
    x = residual(build, x, 64, 64, 2)
    return build.model(build.head(build.norm(x, 64), 64 * 16))
