"""Channels that never change are folded away, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.models.build.dynamic import session
from facefleet.models.build.graph import constants
from facefleet.models.build.idle import drop_idle_channels


def bottleneck(activation, *, channels=32, dead_first=(), dead_depthwise=(), second_reader=False):
    """Convolution, depthwise convolution and 1 x 1 convolution, with channels of no weight."""
    random = np.random.default_rng(0)
    inits = {
        "w1": random.normal(0, 1, (channels, 3, 3, 3)),
        "b1": random.normal(0, 1, channels),
        "w2": random.normal(0, 1, (channels, 1, 3, 3)),
        "b2": random.normal(0, 1, channels),
        "w3": random.normal(0, 1, (5, channels, 1, 1)),
        "b3": random.normal(0, 1, 5),
        "slope": random.uniform(0.1, 0.4, (channels, 1, 1)),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    inits["w1"][list(dead_first)] *= 1e-9
    inits["b1"][list(dead_first)] = -1  # zero behind ReLU
    inits["w2"][list(dead_depthwise)] = 0
    extra = {"PRelu": ["slope"], "Clip": ["low", "high"]}.get(activation, [])
    nodes = [
        helper.make_node("Conv", ["images", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node(activation, ["c1", *extra], ["a1"]),
        helper.make_node("Conv", ["a1", "w2", "b2"], ["c2"], group=channels, pads=[1, 1, 1, 1]),
        helper.make_node(activation, ["c2", *extra], ["a2"]),
        helper.make_node("Conv", ["a2", "w3", "b3"], ["c3"]),
    ]
    if second_reader:
        nodes.append(helper.make_node("ReduceMean", ["a1"], ["mean"]))
        nodes.append(helper.make_node("Add", ["c3", "mean"], ["y"]))
    else:
        nodes.append(helper.make_node("Relu", ["c3"], ["y"]))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 9, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in inits.items() if k in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def outputs(model):
    images = np.random.default_rng(1).normal(0, 1, (2, 3, 9, 7)).astype(np.float32)
    return session(model).run(None, {"images": images})[0]


@pytest.mark.parametrize("activation", ["Relu", "Clip", "PRelu", "LeakyRelu"])
@pytest.mark.parametrize("where", ["first", "depthwise", "both"])
def test_answers_stay(activation, where):
    dead = {
        "dead_first": range(4, 22) if where != "depthwise" else (),
        "dead_depthwise": range(10, 28) if where != "first" else (),
    }
    model = bottleneck(activation, **dead)
    want = outputs(model)
    dropped = drop_idle_channels(model.graph)
    # Behind PRelu and LeakyRelu a channel without weights is its bias, not zero, and differs at the border.
    leaves = activation in ("PRelu", "LeakyRelu") and where == "first"
    assert dropped == (0 if leaves else 16)
    kept = 32 - dropped
    depthwise = [node for node in model.graph.node if node.op_type == "Conv"][1]
    assert constants(model.graph)[depthwise.input[1]].shape == (kept, 1, 3, 3)
    assert np.abs(outputs(model) - want).max() < 1e-4 * np.abs(want).max()


def test_less_than_a_lane_is_left():
    model = bottleneck("Relu", dead_depthwise=range(12))
    assert drop_idle_channels(model.graph) == 0


def test_what_is_read_elsewhere_is_left():
    model = bottleneck("Relu", dead_depthwise=range(20), second_reader=True)
    assert drop_idle_channels(model.graph) == 0


def test_living_channels_are_left():
    model = bottleneck("Clip")
    want = outputs(model)
    assert drop_idle_channels(model.graph) == 0
    assert np.array_equal(outputs(model), want)
