"""SCRFD without its last convolutions: the graph that is left, and what is computed where there are faces."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.backends import InputContract, RunnerOptions, create_runner
from facefleet.errors import BadOutputError, GraphError
from facefleet.models.build.dynamic import session
from facefleet.models.build.sparse import check_left_out, leave_out_last
from facefleet.models.detectors import Detector, SparseHead
from facefleet.models.detectors.scrfd import ScrfdHead

STRIDES, ANCHORS, CHANNELS = (8, 16, 32), 2, 5


def scrfd(*, landmarks=True, scale=1.0, side=3, stride=1, mul=False):
    """A graph that ends as SCRFD does, prepared: for each stride features, then one joined convolution."""
    random = np.random.default_rng(3)
    nodes, constants, outputs = [], [], {1: [], 4: [], 10: []}
    widths = (1, 4, 10) if landmarks else (1, 4)

    def constant(name, value):
        constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    for level, step in enumerate(STRIDES):
        f = f"features{level}"
        weight = constant(f"{f}_w", random.normal(0, 0.05, (CHANNELS, 3, step, step)))
        nodes.append(helper.make_node("Conv", ["images", weight], [f"{f}_raw"], strides=[step] * 2))
        nodes.append(helper.make_node("Relu", [f"{f}_raw"], [f]))
        total = ANCHORS * sum(widths)
        head = [
            constant(f"{f}_head", random.normal(0, scale, (total, CHANNELS, side, side))),
            constant(f"{f}_bias", random.normal(0, 1, total)),
        ]
        pads = [side // 2] * 4
        nodes.append(helper.make_node("Conv", [f, *head], [f"{f}_joined"], pads=pads, strides=[stride] * 2))
        parts = [f"{f}_{width}" for width in widths]
        sizes = [ANCHORS * width for width in widths]
        nodes.append(helper.make_node("Split", [f"{f}_joined"], parts, axis=1, split=sizes))
        for width, name in zip(widths, parts, strict=True):
            if mul and width == 4:
                nodes.append(helper.make_node("Mul", [name, constant(f"{name}_m", 2.0)], [f"{name}_scaled"]))
            constants.append(numpy_helper.from_array(np.array([0, -1, width]), f"{name}_shape"))
            nodes.append(
                helper.make_node(
                    "Transpose", [f"{name}_scaled" if mul and width == 4 else name], [f"{name}_t"], perm=[0, 2, 3, 1]
                )
            )
            nodes.append(helper.make_node("Reshape", [f"{name}_t", f"{name}_shape"], [f"{name}_r"]))
            if width == 1:
                nodes.append(helper.make_node("Sigmoid", [f"{name}_r"], [f"{name}_p"]))
            outputs[width].append(f"{name}_p" if width == 1 else f"{name}_r")
    picture = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", f"rows_{name}", width])
        for width in widths
        for name in outputs[width]
    ]
    graph = helper.make_graph(nodes, "scrfd", [picture], ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)


def pictures(height, width, n=2):
    return np.random.default_rng(1).normal(0, 1, (n, 3, height, width)).astype(np.float32)


def both(model, given, threshold):
    """Candidates of the whole graph and of the one without its last convolutions."""
    rest, sparse = leave_out_last(model)
    dense = ScrfdHead([(value.name, value.type.tensor_type.shape.dim[-1].dim_value) for value in model.graph.output])
    height, width = given.shape[2:]
    found = []
    for graph, head in ((model, dense), (rest, sparse)):
        outputs = session(graph).run(None, {"images": given})
        found.append([head.candidates(outputs, row, width, height, threshold) for row in range(len(given))])
    return zip(*found, strict=True)


@pytest.mark.parametrize("landmarks", [True, False])
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.5, 0.9, 2.0])
@pytest.mark.parametrize("side", [1, 3, 5])
def test_the_same_candidates(landmarks, threshold, side):
    """At every cell, those of the border too, and in the same order."""
    counts = []
    for want, got in both(scrfd(landmarks=landmarks, side=side), pictures(96, 64), threshold):
        assert np.allclose(got.scores, want.scores, atol=1e-5)
        assert np.allclose(got.boxes, want.boxes, atol=1e-3)
        assert (got.landmarks is None) == (want.landmarks is None)
        if landmarks:
            assert np.allclose(got.landmarks, want.landmarks, atol=1e-3)
        assert got.best_rejected == pytest.approx(want.best_rejected, abs=1e-5)
        counts.append(len(got.scores))
    cells = sum(ANCHORS * (96 // stride) * (64 // stride) for stride in STRIDES)
    assert all(count == cells for count in counts) if threshold < 0 else all(count < cells for count in counts)
    assert not any(counts) if threshold > 1 else all(counts)


def test_what_is_left_ends_in_logits_and_features():
    rest, _ = leave_out_last(scrfd())
    onnx.checker.check_model(rest)
    outputs = session(rest).run(None, {"images": pictures(64, 96)})
    cells = sum(ANCHORS * (64 // stride) * (96 // stride) for stride in STRIDES)
    assert [output.shape for output in outputs] == [(2, cells)] + [(2, 64 // s, 96 // s, CHANNELS) for s in STRIDES]
    assert not any("joined" in name for node in rest.graph.node for name in node.output)


@pytest.mark.parametrize("other", [{"mul": True}, {"stride": 2}])
def test_heads_of_another_kind_stay(other):
    assert leave_out_last(scrfd(**other)) is None


def test_the_check_refuses_what_differs():
    model = scrfd()
    rest, head = leave_out_last(model)
    assert check_left_out(model, rest, head, pictures(64, 64)) < 1e-5
    _, wrong = leave_out_last(scrfd(scale=1.01))
    with pytest.raises(GraphError, match="without its last layer differs by"):
        check_left_out(model, rest, wrong, pictures(64, 64))


def test_saved_and_read_again(tmp_path):
    model = scrfd()
    rest, head = leave_out_last(model)
    head.save(tmp_path / "last.npz")
    again = SparseHead.load(tmp_path / "last.npz")
    assert check_left_out(model, rest, again, pictures(64, 64)) < 1e-5
    assert again.before == head.before == {"features0_raw", "features1_raw", "features2_raw"}
    assert again.passed_on == {"features_0", "features_1", "features_2"}


class Spec:
    family, nms = "scrfd", 0.4


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
class TestDetector:
    """Both backends hand the outputs over where they are."""

    def opened(self, folder, backend, model, heads):
        file = folder / f"{len(model.graph.output)}.onnx"
        onnx.save(model, file)
        contract = InputContract("rgb", (127.5,) * 3, (128.0,) * 3)
        runner = create_runner(backend, file, contract, RunnerOptions(warm=((64, 64),), instances=2, threads=2))
        return Detector(runner, Spec(), heads=heads)

    def test_finds_what_the_whole_one_finds(self, tmp_path, backend):
        model = scrfd()
        rest, head = leave_out_last(model)
        random = np.random.default_rng(5).integers(0, 256, (5, 64, 64, 3)).astype(np.uint8)
        with (
            self.opened(tmp_path, backend, model, (None, None)) as whole,
            self.opened(tmp_path, backend, rest, (head, None)) as sparse,
        ):
            for given in (random, random[:, :32]):  # the second has no plan of its own
                want, got = whole.infer(given, 0.5), sparse.infer(given, 0.5)
                assert sum(len(each.scores) for each in want) > 10
                for a, b in zip(want, got, strict=True):
                    assert np.allclose(a.boxes, b.boxes, atol=2e-3)
                    assert np.allclose(a.scores, b.scores, atol=1e-4)
                alone = [sparse.infer(picture[None], 0.5)[0] for picture in given]
                for a, b in zip(got, alone, strict=True):
                    assert np.array_equal(a.boxes, b.boxes)
                    assert np.array_equal(a.landmarks, b.landmarks)

    def test_what_is_not_finite_shows(self, tmp_path, backend):
        """In the features, which are not looked at: it shows in the logits."""
        model = scrfd()
        for tensor in model.graph.initializer:
            if tensor.name == "features1_w":
                values = numpy_helper.to_array(tensor).copy()
                values[0] = 3e38
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        rest, head = leave_out_last(model)
        with (
            pytest.raises(BadOutputError, match="not finite"),
            self.opened(tmp_path, backend, rest, (head, None)) as sparse,
        ):
            sparse.infer(np.full((1, 64, 64, 3), 255, np.uint8), 0.5)
