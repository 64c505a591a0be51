"""Graphs in fp16 and bf16: what is lowered, what is not, and what it costs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from facefleet.errors import GraphError
from facefleet.models.build.cast import cast_graph, tail
from facefleet.models.build.dynamic import session
from facefleet.models.build.parity import compare
from tests.unit.models.build.test_engines import network

X = np.random.default_rng(0).uniform(-1, 1, (4, 3, 16, 16)).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    return onnx.load(network(tmp_path / "m.onnx"))


def kinds(model):
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def test_the_last_fully_connected_layer_stays_in_fp32(model):
    assert tail(model) == {"output"}
    low = cast_graph(model, "fp16")
    assert {name: kind for name, kind in kinds(low).items() if name != "shape"} == {
        "w_fp16": TensorProto.FLOAT16,
        "s_fp16": TensorProto.FLOAT16,
        "w2_fp16": TensorProto.FLOAT16,
        "fc": TensorProto.FLOAT,
    }
    casts = [node for node in low.graph.node if node.op_type == "Cast"]
    assert len(casts) == 2, "one on the way in, one before the last layer"
    assert low.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_answers_are_near_and_not_equal(model):
    want = session(model).run(None, {"images": X})[0]
    got = session(cast_graph(model, "fp16")).run(None, {"images": X})[0]
    assert got.dtype == np.float32
    assert 0 < np.abs(want - got).max() < 5e-3 * np.abs(want).max()


def test_named_layers_stay_high(model):
    low = cast_graph(model, "fp16", high=["conv1", "prelu1"])
    assert kinds(low)["w"] == kinds(low)["s"] == TensorProto.FLOAT
    assert kinds(low)["w2_fp16"] == TensorProto.FLOAT16
    want = session(model).run(None, {"images": X})[0]
    got = session(low).run(None, {"images": X})[0]
    assert np.abs(want - got).max() < 5e-3 * np.abs(want).max()


def test_bf16_in_torch(model):
    torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')
    from facefleet.backends.torch.importer import module_from_onnx

    want = session(model).run(None, {"images": X})[0]
    with torch.inference_mode():
        got = module_from_onnx(cast_graph(model, "bf16"))(torch.from_numpy(X))[0].numpy()
    assert got.dtype == np.float32
    assert 0 < np.abs(want - got).max() < 5e-2 * np.abs(want).max()


def test_a_weight_that_does_not_fit_is_named(model):
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1e6, "w2"))
    with pytest.raises(GraphError, match=r"Conv conv2: a weight of .* does not fit fp16"):
        cast_graph(model, "fp16")
    cast_graph(model, "bf16")


def test_overflow_on_the_way_is_refused_by_the_gate(model):
    """Fault 16: weights fit, what they make of a bright picture does not."""
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "w2"):
            tensor.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(tensor)) * 2000, tensor.name))
    runs = [session(each) for each in (model, cast_graph(model, "fp16"))]
    pictures = np.random.default_rng(1).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)

    def run(runner):
        return lambda x: runner.run(None, {"images": np.ascontiguousarray(x.transpose(0, 3, 1, 2)).astype(np.float32)})

    report = compare(
        run(runs[0]), run(runs[1]), pictures, names=["output"], batches=[1, 2, 4], precision="fp16", source="noise"
    )
    assert not report.passed
    assert {refusal.code for refusal in report.refusals} <= {"overflow", "not_finite"}
