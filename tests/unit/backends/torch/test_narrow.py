"""Convolutions of few channels, replaced in an imported graph: which, into what, and that answers stay."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

from facefleet.backends.base import InputContract  # noqa: E402
from facefleet.backends.torch.importer import module_from_onnx  # noqa: E402
from facefleet.backends.torch.narrow import narrow_convolutions  # noqa: E402

CONTRACT = InputContract("bgr", (104.0, 117.0, 123.0), (64.0, 64.0, 64.0))


class Graph:
    """A network in half precision, layer by layer."""

    def __init__(self) -> None:
        self.nodes = [helper.make_node("Cast", ["images"], ["low"], to=TensorProto.FLOAT16)]
        self.constants: list[Any] = []
        self.draw = np.random.default_rng(0)

    def conv(self, x: str, y: str, inputs: int, outputs: int, side: int = 3, **attributes: Any) -> str:
        for name, shape in (
            (f"{y}_w", (outputs, inputs // attributes.get("group", 1), side, side)),
            (f"{y}_b", (outputs,)),
        ):
            value = (self.draw.standard_normal(shape) / 8).astype(np.float16)
            self.constants.append(numpy_helper.from_array(value, name))
        attributes = {"pads": [side // 2] * 4} | attributes
        self.nodes.append(helper.make_node("Conv", [x, f"{y}_w", f"{y}_b"], [y], **attributes))
        return y

    def node(self, kind: str, inputs: list[str], y: str) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [y]))
        return y

    def model(self, *outputs: str) -> onnx.ModelProto:
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", [images], values, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def network() -> onnx.ModelProto:
    """All that is replaced, and all that is not."""
    g = Graph()
    x = g.node("Relu", [g.conv("low", "first", 3, 16, strides=[2, 2])], "x")
    a = g.node("Relu", [g.conv(x, "a0", 16, 24)], "a")
    b = g.node("Relu", [g.node("Add", [g.conv(a, "b0", 24, 24), a], "b1")], "b")  # with a residual
    c = g.node("Add", [g.conv(b, "c0", 24, 48, strides=[2, 2]), g.conv(b, "c1", 24, 48, 1, strides=[2, 2])], "c")
    d = g.conv(c, "d", 48, 30, 1)  # channels that are no multiple of eight, and nothing behind
    e = g.conv(c, "e", 48, 48, group=48)  # depthwise
    f = g.node("Relu", [g.conv(c, "f0", 48, 128)], "f")  # many channels
    h = g.node("Add", [g.conv(c, "h0", 48, 1, 1), c], "h")  # what is added is larger
    return g.model(d, e, f, h)


def replaced(module: Any) -> Counter[str]:
    return Counter(
        node.target.name() if hasattr(node.target, "name") else node.meta.get("operator", ("",))[0]
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def test_what_is_replaced() -> None:
    module = module_from_onnx(network())
    assert narrow_convolutions(module, CONTRACT, (64, 96))
    found = replaced(module)
    assert found["facefleet::narrow_stem"] == 1
    assert found["facefleet::narrow_conv"] == 6
    assert found["Conv"] == 2
    assert found["Add"] == 1
    assert found["Relu"] == 1
    assert not found["Cast"]


def test_shapes_stay() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain, module = module_from_onnx(network()), module_from_onnx(network())
    narrow_convolutions(module, CONTRACT, (64, 96))
    with FakeTensorMode(allow_non_fake_inputs=True):
        expected = plain(torch.empty(2, 3, 64, 96))
        got = module(torch.empty(2, 64, 96, 3, dtype=torch.uint8))
    assert [tuple(each.shape) for each in got] == [tuple(each.shape) for each in expected]


def test_a_network_in_full_precision_stays() -> None:
    model = network()
    for constant in model.graph.initializer:
        constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.float32), constant.name))
    del model.graph.node[0]
    model.graph.node[0].input[0] = "images"
    module = module_from_onnx(model)
    assert not narrow_convolutions(module, CONTRACT, (64, 96))
    assert not any("facefleet" in name for name in replaced(module))


SCRIPT = """
import json, sys, torch
sys.path.insert(0, {folder!r})
from test_narrow import CONTRACT, network
from facefleet.backends.torch.importer import module_from_onnx
from facefleet.backends.torch.narrow import narrow_convolutions
plain, module = module_from_onnx(network()).float(), module_from_onnx(network())
narrow_convolutions(module, CONTRACT, (24, 40))
torch.manual_seed(0)
pictures = torch.randint(0, 256, (2, 24, 40, 3), dtype=torch.uint8)
mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (CONTRACT.mean, CONTRACT.std))
images = (pictures.permute(0, 3, 1, 2).float().flip(1) - mean) / std
for node in plain.graph.nodes:
    if node.meta.get("operator", ("",))[0] == "Cast":
        node.replace_all_uses_with(node.args[0])
plain.recompile()
with torch.inference_mode():
    pairs = zip(plain(images), module(pictures))
    print(json.dumps([float((b.float() - a).norm() / a.norm()) for a, b in pairs]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton comes with CUDA builds of torch only")
def test_answers_stay_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=os.path.dirname(__file__))],  # noqa: PTH120
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("Triton's interpreter does not run with this numpy")
    assert done.returncode == 0, done.stderr[-2000:]
    differences = json.loads(done.stdout)
    assert len(differences) == 4
    assert max(differences) < 3e-3
