"""Weights rounded together: every one a bf16 number, and the layer's answer nearer than with each rounded alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import bf16_bits, constants
from facefleet.models.build.rounding import Rounder
from tests.unit.models.build.test_engines import network


def test_bf16_is_the_nearest_number():
    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -1e-3, 0.0], np.float32)
    back = (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)
    assert back.tolist()[:3] == [1.0, 1.0, 1.0 + 2**-6]  # ties go to the even one
    assert np.abs(back[3] / values[3] - 1) < 2**-8
    assert back[4] == 0


@pytest.fixture
def inputs():
    """Smooth pictures, as real ones are: neighbors are alike, so that errors of weights can cancel out."""
    import cv2

    noise = np.random.default_rng(0).uniform(-1, 1, (32, 16, 16, 3)).astype(np.float32)
    return np.stack([cv2.GaussianBlur(each, (0, 0), 2) for each in noise]).transpose(0, 3, 1, 2).copy()


def answers(model, inputs):
    return session(model).run(None, {"images": inputs})[0]


def test_errors_cancel_out(tmp_path, inputs):
    model = onnx.load(network(tmp_path / "m.onnx"))
    half = len(inputs) // 2
    together = Rounder(model, inputs[:half]).rounded()
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    for tensor in alone.graph.initializer:
        if tensor.name in ("w", "w2"):
            value = onnx.numpy_helper.to_array(tensor)
            bits = bf16_bits(value).astype(np.uint32) << 16
            tensor.CopyFrom(onnx.numpy_helper.from_array(bits.view(np.float32), tensor.name))
    known = constants(together.graph)
    weights = [known[node.input[1]] for node in together.graph.node if node.op_type == "Conv"]
    for weight in weights:
        assert not (weight.view(np.uint32) & 0xFFFF).any(), "not a bf16 number"
    want, other = answers(model, inputs[half:]), inputs[half:]
    errors = [np.abs(answers(each, other) - want).mean() for each in (together, alone)]
    assert errors[0] < 0.75 * errors[1]


def test_named_layers_stay_as_they_are(tmp_path, inputs):
    model = onnx.load(network(tmp_path / "m.onnx"))
    rounder = Rounder(model, inputs)
    kept = constants(rounder.rounded(frozenset(["conv1"])).graph)
    assert np.array_equal(kept["w"], constants(model.graph)["w"])
    assert "w2" not in kept
    assert np.array_equal(answers(rounder.rounded(frozenset(["conv1", "conv2"])), inputs), answers(model, inputs))
