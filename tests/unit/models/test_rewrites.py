"""Graph rewrites on small graphs, and broken rewrites, which the check must refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.errors import GraphError
from facefleet.models.build import inspect_model, rewrites
from facefleet.models.build.dynamic import dynamic_onnx, inner_values, session

MEAN, STD = (127.5,) * 3, (128.0,) * 3


def _init(name: str, value: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(value, name)


def _model(
    nodes: list, inits: list, outputs: list, shape: list, *, opset: int = 13, extra: list | None = None
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), *(extra or [])]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs]
    graph = helper.make_graph(nodes, "g", inputs, outs, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def interleaved_head() -> onnx.ModelProto:
    """Two SCRFD-like heads that mix the pictures of a batch, at a free size."""
    random = np.random.default_rng(0)
    nodes, inits, outputs = [], [], []
    for name, channels in (("score", 2), ("box", 8)):
        inits += [
            _init(f"{name}_w", random.normal(0, 0.2, (channels, 3, 3, 3)).astype(np.float32)),
            _init(f"{name}_b", random.normal(0, 0.2, channels).astype(np.float32)),
            _init(f"{name}_shape", np.array([-1, channels // 2], np.int64)),
        ]
        nodes += [
            helper.make_node("Conv", ["x", f"{name}_w", f"{name}_b"], [f"{name}_c"], pads=[1, 1, 1, 1]),
            helper.make_node("Transpose", [f"{name}_c"], [f"{name}_t"], perm=[2, 3, 0, 1]),
            helper.make_node("Reshape", [f"{name}_t", f"{name}_shape"], [name]),
        ]
        outputs.append((name, [2048, channels // 2]))
    return _model(nodes, inits, outputs, [1, 3, 32, 32])


def embedder(*, opset: int = 13) -> onnx.ModelProto:
    """Conv, PRelu, fixed Reshape, fully connected; with a weight declared as an input and one input nobody reads."""
    random = np.random.default_rng(1)
    inits = [
        _init("w", random.normal(0, 0.2, (4, 3, 4, 4)).astype(np.float32)),
        _init("slope", random.uniform(0.1, 0.4, (4, 1, 1)).astype(np.float32)),
        _init("shape", np.array([1, -1], np.int64)),
        _init("fc", random.normal(0, 0.2, (4 * 4 * 4, 5)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        helper.make_node("PRelu", ["c", "slope"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "fc"], ["y"]),
    ]
    extra = [
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 4, 4]),
        helper.make_tensor_value_info("ghost", TensorProto.FLOAT, [7]),
    ]
    return _model(nodes, inits, [("y", [1, 5])], [1, 3, 16, 16], opset=opset, extra=extra)


def _saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def test_interleaved_heads_are_separated(tmp_path: Path) -> None:
    """Fault 25: batch of a published batch-1 detector; also at a size it was not declared for."""
    path = _saved(tmp_path, interleaved_head())
    model, report = dynamic_onnx(path, role="detector", mean=MEAN, std=STD, prelu=False)
    assert report.changes["mixed heads separated"] == 2
    assert report.changes["sibling convolutions joined"] == 2
    assert max(report.errors.values()) < 1e-5
    pictures = np.random.default_rng(2).normal(0, 1, (3, 3, 64, 32)).astype(np.float32)
    score, box = session(model).run(None, {"images": pictures})
    assert (score.shape, box.shape) == ((3, 4096, 1), (3, 4096, 4))
    single = session(model).run(None, {"images": pictures[1:2]})
    assert score[1] == pytest.approx(single[0][0], abs=1e-5)


def test_naive_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 15: only making the batch symbolic runs, and answers wrongly: the check says so."""
    monkeypatch.setattr(rewrites, "separate_heads", lambda graph: 0)
    with pytest.raises(GraphError):
        dynamic_onnx(_saved(tmp_path, interleaved_head()), role="detector", mean=MEAN, std=STD, prelu=False)


def test_mixed_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right shape with rows of other pictures in it."""

    def wrong(graph: onnx.GraphProto) -> int:
        for node in graph.node:
            if node.op_type == "Reshape":
                width = int(numpy_helper.to_array(next(i for i in graph.initializer if i.name == node.input[1]))[-1])
                graph.initializer.append(_init(f"{node.output[0]}_s", np.array([4, -1, width], np.int64)))
                node.input[1] = f"{node.output[0]}_s"
        return 1

    monkeypatch.setattr(rewrites, "separate_heads", wrong)
    with pytest.raises(GraphError, match="differs"):
        dynamic_onnx(_saved(tmp_path, interleaved_head()), role="detector", mean=MEAN, std=STD, prelu=False)


@pytest.mark.parametrize("prelu", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_embedder_is_freed(tmp_path: Path, prelu: bool, opset: int) -> None:
    path = _saved(tmp_path, embedder(opset=opset))
    model, report = dynamic_onnx(path, role="embedder", mean=MEAN, std=STD, prelu=prelu)
    assert report.changes["stale inputs dropped"] == 2
    assert report.changes["fixed reshapes freed"] == 1
    assert ("PRelu" in {node.op_type for node in model.graph.node}) != prelu
    assert [value.name for value in model.graph.input] == ["images"]
    out = session(model).run(None, {"images": np.zeros((5, 3, 16, 16), np.float32)})[0]
    assert out.shape == (5, 5)
    assert model.graph.output[0].name == "output"


def test_prelu_rewrite_is_exact() -> None:
    model = embedder()
    rewrites.drop_stale_inputs(model.graph)
    x = np.random.default_rng(0).normal(0, 3, (1, 3, 16, 16)).astype(np.float32)
    before = session(model).run(None, {"x": x})[0]
    assert rewrites.prelu_as_convolutions(model.graph) == 1
    assert session(model).run(None, {"x": x})[0] == pytest.approx(before, abs=1e-5)


@pytest.mark.parametrize("block", [0, 2])
def test_dequantized_constants_are_folded(block: int) -> None:
    """Blocks of int8 behind DequantizeLinear, as OpenCV publishes them."""
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (4, 6)).astype(np.int8)
    scale = random.uniform(0.01, 0.1, (4, 3) if block else (6,)).astype(np.float32)
    attributes = {"axis": 1, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wf"], **attributes),
        helper.make_node("Reshape", ["wf", "t"], ["wt"]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
    ]
    inits = [_init("w", weight), _init("s", scale), _init("t", np.array([6, 4], np.int64))]
    model = _model(nodes, inits, [("y", [1, 4])], [1, 6], opset=21)
    assert rewrites.fold_dequantized(model.graph) == 2
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    expected = weight * (np.repeat(scale, 2, axis=1) if block else scale[None])
    folded = numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == "wt"))
    assert folded == pytest.approx(expected.reshape(6, 4).astype(np.float32), rel=1e-6)


def test_fixed_resize_becomes_a_factor() -> None:
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    model = _model(nodes, [_init("sizes", np.array([1, 3, 32, 64], np.int64))], [("y", [1, 3, 32, 64])], [1, 3, 16, 16])
    picture = np.zeros((1, 3, 16, 16), np.float32)
    assert rewrites.scale_instead_of_size(model, lambda names: inner_values(model, names, picture)) == 1
    rewrites.free_dimensions(model.graph, size=True)
    assert session(model).run(None, {"x": np.zeros((2, 3, 8, 8), np.float32)})[0].shape == (2, 3, 16, 32)


class TestNotUnderstood:
    def test_no_onnx(self, tmp_path: Path) -> None:
        path = tmp_path / "x.onnx"
        path.write_bytes(b"not a protobuf at all, surely")
        with pytest.raises(GraphError, match="not an ONNX file"):
            dynamic_onnx(path, role="embedder", mean=MEAN, std=STD, prelu=False)
        with pytest.raises(GraphError):
            inspect_model(path)

    def test_two_inputs(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
        extra = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 3, 4, 4])]
        path = _saved(tmp_path, _model(nodes, [], [("y", [1, 3, 4, 4])], [1, 3, 4, 4], extra=extra))
        with pytest.raises(GraphError, match="one NCHW picture input"):
            dynamic_onnx(path, role="embedder", mean=MEAN, std=STD, prelu=False)

    def test_wrong_channels(self, tmp_path: Path) -> None:
        path = _saved(
            tmp_path, _model([helper.make_node("Relu", ["x"], ["y"])], [], [("y", [1, 1, 4, 4])], [1, 1, 4, 4])
        )
        with pytest.raises(GraphError, match=r"not \(n, 3, h, w\)"):
            dynamic_onnx(path, role="embedder", mean=MEAN, std=STD, prelu=False)


def test_inspect(tmp_path: Path) -> None:
    report = inspect_model(_saved(tmp_path, embedder()))
    assert report.inputs == {"x": [1, 3, 16, 16]}
    assert report.stale_inputs == ["w", "ghost"]
    assert report.layout == "embedder: 16 x 16 chips, 5 dimensions"
    assert any("Reshape r to [1, -1]" in reason for reason in report.fixed_batch)
    assert report.operators["PRelu"] == 1
    mixed = inspect_model(_saved(tmp_path, interleaved_head()))
    assert any("mixes the pictures" in reason for reason in mixed.fixed_batch)
