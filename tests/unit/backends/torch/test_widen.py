"""Odd channel counts made even, with the same answers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

from facefleet.backends.torch.importer import module_from_onnx  # noqa: E402  # after the skip
from facefleet.backends.torch.widen import widen  # noqa: E402

Layer = tuple[str, str, int, int, int]
"""Input, output, channels in and out, side of the kernel."""


def graph(convolutions: list[Layer], others: list[onnx.NodeProto], outputs: list[str], opset: int) -> onnx.ModelProto:
    draw = np.random.default_rng(0)
    nodes, constants = list(others), []
    for source, target, before, after, side in convolutions:
        weight = draw.normal(size=(after, before, side, side)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"{target}_w"))
        inputs = [source, f"{target}_w"]
        if after % 2 == 0:
            constants.append(numpy_helper.from_array(draw.normal(size=after).astype(np.float32), f"{target}_b"))
            inputs.append(f"{target}_b")
        nodes.append(helper.make_node("Conv", inputs, [target], pads=[side // 2] * 4, kernel_shape=[side, side]))
    made = {"images"}
    ordered = []
    while nodes:
        ready = next(n for n in nodes if all(i in made or i.endswith(("_w", "_b")) for i in n.input))
        nodes.remove(ready)
        ordered.append(ready)
        made.update(ready.output)
    return helper.make_model(
        helper.make_graph(
            ordered,
            "drawn",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 16, 16])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )


def channels(model: onnx.ModelProto) -> list[tuple[int, int]]:
    known = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    return [tuple(known[node.input[1]][:2]) for node in model.graph.node if node.op_type == "Conv"]  # type: ignore[misc]


def same_answers(model: onnx.ModelProto) -> int:
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = module_from_onnx(model)(images)
    changed = widen(model)
    after = module_from_onnx(model)(images)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    return changed


@pytest.mark.parametrize("opset", [11, 17])
def test_a_stem_and_a_head_of_odd_channels(opset: int) -> None:
    layers = [
        ("images", "a", 3, 12, 3), ("ra", "b", 12, 12, 3), ("rb", "c", 12, 24, 3),
        ("c", "score", 24, 2, 3), ("c", "box", 24, 8, 3), ("c", "points", 24, 20, 3),
    ]  # fmt: skip
    relus = [helper.make_node("Relu", [name], [f"r{name}"]) for name in "ab"]
    model = graph(layers, relus, ["score", "box", "points"], opset)
    assert same_answers(model) == 5
    assert channels(model) == [(16, 3), (16, 16), (24, 16), (32, 24)]


def test_what_others_see_keeps_its_channels() -> None:
    layers = [("images", "a", 3, 12, 3), ("images", "b", 3, 12, 1), ("s", "c", 12, 8, 3), ("images", "d", 3, 5, 1)]
    add = helper.make_node("Add", ["a", "b"], ["s"])
    model = graph(layers, [add], ["c", "d"], 17)
    assert same_answers(model) == 2  # b and d read the same map
    assert sorted(channels(model)) == [(8, 12), (12, 3), (24, 3)]


def test_even_graphs_stay_as_they_are() -> None:
    model = graph([("images", "a", 3, 16, 3), ("a", "b", 16, 8, 3), ("a", "c", 16, 8, 3)], [], ["b", "c"], 17)
    before = model.SerializeToString()
    assert same_answers(model) == 0
    assert model.SerializeToString() == before
