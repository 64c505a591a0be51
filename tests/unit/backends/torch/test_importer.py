"""Operators one by one, and whole networks, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.errors import GraphError

torch = pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(0, 1, (2, 6, 9, 8)).astype(np.float32)


def weights(*shape):
    return RANDOM.normal(0, 1, shape).astype(np.float32)


def graph(nodes, constants, outputs, opset=13):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, "h", "w"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def both(model, x=X):
    from facefleet.backends.torch.importer import module_from_onnx
    from facefleet.models.build.dynamic import session

    want = session(model).run(None, {"x": x})
    with torch.inference_mode():
        got = module_from_onnx(model)(torch.from_numpy(x))
    return want, [each.numpy() for each in got]


def node(kind, inputs=("x",), outputs=("y",), **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


ONE = {
    "conv": (
        node("Conv", ("x", "w", "b"), pads=[1, 1, 1, 1], strides=[2, 2]),
        {"w": weights(4, 6, 3, 3), "b": weights(4)},
    ),
    "conv of uneven pads": (node("Conv", ("x", "w"), pads=[0, 1, 2, 1]), {"w": weights(4, 6, 3, 3)}),
    "depthwise, dilated": (
        node("Conv", ("x", "w"), group=6, dilations=[2, 2], pads=[2, 2, 2, 2]),
        {"w": weights(6, 1, 3, 3)},
    ),
    "max pool": (node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), {}),
    "max pool of uneven pads": (node("MaxPool", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 0]), {}),
    "average pool, ceil": (node("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), {}),
    "batch norm": (
        node("BatchNormalization", ("x", "s", "b", "m", "v"), epsilon=1e-3),
        {"s": weights(6), "b": weights(6), "m": weights(6), "v": weights(6) ** 2},
    ),
    "prelu": (node("PRelu", ("x", "s")), {"s": weights(6, 1, 1)}),
    "leaky relu": (node("LeakyRelu", alpha=0.1), {}),
    "clip": (node("Clip", ("x", "a", "b")), {"a": np.float32(-0.5), "b": np.float32(0.5)}),
    "nearest": (
        node(
            "Resize", ("x", "", "s"), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "linear": (
        node("Resize", ("x", "", "s"), mode="linear", coordinate_transformation_mode="half_pixel"),
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "softmax": (node("Softmax", axis=1), {}),
    "transpose": (node("Transpose", perm=[0, 2, 3, 1]), {}),
    "reshape": (node("Reshape", ("x", "s")), {"s": np.array([0, -1, 4], np.int64)}),
    "flatten": (node("Flatten"), {}),
    "mean": (node("ReduceMean", axes=[2, 3], keepdims=0), {}),
    "slice": (
        node("Slice", ("x", "a", "b", "c")),
        {"a": np.array([1, -3]), "b": np.array([4, 9999]), "c": np.array([1, 3])},
    ),
    "gather": (node("Gather", ("x", "i"), axis=1), {"i": np.array([2, -1, 0])}),
    "global average": (node("GlobalAveragePool"), {}),
    "sub from a constant": (node("Sub", ("c", "x")), {"c": np.float32(1.5)}),
}


@pytest.mark.parametrize("name", list(ONE))
def test_an_operator_is_what_onnx_says(name):
    made, constants = ONE[name]
    want, got = both(graph([made], constants, ["y"]))
    assert got[0].shape == want[0].shape
    assert np.abs(got[0] - want[0]).max() < 1e-5


def test_softmax_before_opset_13_takes_the_rest_as_one_axis():
    want, got = both(graph([node("Softmax", axis=2)], {}, ["y"], opset=11))
    assert np.abs(got[0] - want[0]).max() < 1e-6


def test_shapes_are_followed_through_arithmetic():
    """The reshape of a detection head that was exported with a dynamic batch."""
    nodes = [
        node("Transpose", ("x",), ("t",), perm=[0, 2, 3, 1]),
        node("Shape", ("t",), ("s",)),
        node("Gather", ("s", "zero"), ("n",), axis=0),
        node("Unsqueeze", ("n", "zeros"), ("n1",)),
        node("Concat", ("n1", "rest"), ("wanted",), axis=0),
        node("Reshape", ("t", "wanted"), ("y",)),
    ]
    constants = {"zero": np.int64(0), "zeros": np.array([0]), "rest": np.array([-1, 3])}
    want, got = both(graph(nodes, constants, ["y"]))
    assert got[0].shape == (2, 144, 3)
    assert np.array_equal(got[0], want[0])


def test_constants_of_equal_content_keep_their_places():
    """Exporters share tensors; a buffer that is counted once must not take the name of the next."""
    shared = np.ones(6, np.float32)
    nodes = [
        node("Identity", ("a",), ("b",)),
        node("Mul", ("x", "a1"), ("p",)),
        node("Add", ("p", "b1"), ("q",)),
        node("Identity", ("a",), ("c",)),
        node("Conv", ("q", "w", "c"), ("r",)),
        node("Conv", ("r", "w2", "b"), ("y",)),
    ]
    constants = {
        "a": shared,
        "a1": np.float32(2),
        "b1": np.float32(3),
        "w": weights(6, 6, 1, 1),
        "w2": weights(6, 6, 1, 1),
    }
    want, got = both(graph(nodes, constants, ["y"]))
    assert np.abs(got[0] - want[0]).max() < 1e-4


def test_what_is_not_known_is_named():
    from facefleet.backends.torch.importer import module_from_onnx

    with pytest.raises(GraphError, match="Einsum"):
        module_from_onnx(graph([node("Einsum", equation="nchw->nc")], {}, ["y"]))
    with pytest.raises(GraphError, match="Resize up1: Resize in mode cubic"):
        module_from_onnx(
            graph([node("Resize", ("x", "", "s"), mode="cubic", name="up1")], {"s": np.ones(4, np.float32)}, ["y"])
        )


def test_published_networks(data_dir):
    """Every network of the data folder, as it is prepared for use, and as it is published where it runs."""
    from facefleet.backends.torch.importer import module_from_onnx
    from facefleet.models.build.dynamic import dynamic_onnx, session

    torch.set_num_threads(1)
    seen = 0
    for path in sorted((data_dir / "models").rglob("*.onnx")):
        embedder = "mobilefacenet" in str(path)
        std = (127.5, 127.5, 127.5)
        model, _ = dynamic_onnx(path, role="embedder" if embedder else "detector", mean=std, std=std, prelu=False)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        x = RANDOM.uniform(-1, 1, (3, 3, shape[2] or 160, shape[3] or 192)).astype(np.float32)
        want = session(model).run(None, {"images": x})
        with torch.inference_mode():
            got = module_from_onnx(model)(torch.from_numpy(x))
        for a, b in zip(want, got, strict=True):
            assert np.abs(a - b.numpy()).max() <= 1e-4 * max(np.abs(a).max(), 1), path.name
        seen += 1
    assert seen >= 7


def test_onnx_is_loaded_from_a_file(tmp_path):
    from facefleet.backends.torch.importer import module_from_onnx

    onnx.save(graph([node("Relu")], {}, ["y"]), tmp_path / "m.onnx")
    assert module_from_onnx(tmp_path / "m.onnx")(torch.ones(1, 6, 2, 2))[0].sum() == 24
