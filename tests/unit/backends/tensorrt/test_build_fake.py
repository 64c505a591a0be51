"""What only TensorRT proper has, against a fake of its builder: it needs a GPU to build."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from facefleet.backends.tensorrt import Binding, TensorRtOptions, build_plan
from facefleet.errors import BackendError, BackendUnavailableError, ConfigError, GraphError, ProfileError

SHAPES = ((1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))


class FakeTensorRt:
    """A builder of one network; `refuse` names the call that answers no."""

    def __init__(self, refuse="", *, typed=True, known=(b"", b"timings of this device")):
        self.refuse, self.known, self.flags, self.built = refuse, known, None, 0
        self.logger = SimpleNamespace(kept=deque(["of another build"]))
        creation = SimpleNamespace(STRONGLY_TYPED=1) if typed else SimpleNamespace()
        self.module = SimpleNamespace(
            Builder=self.builder,
            OnnxParser=lambda network, logger: self.parser(),
            NetworkDefinitionCreationFlag=creation,
            MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
            ProfilingVerbosity=SimpleNamespace(DETAILED="detailed", LAYER_NAMES_ONLY="names"),
            HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS="ampere"),
        )
        self.config = FakeConfig(self)
        self.binding = Binding(self.module, False, "10.9.0", self.logger)

    def builder(self, logger):
        if self.refuse == "builder":
            self.logger.kept.append("no driver")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return SimpleNamespace(
            create_network=self.network,
            create_builder_config=lambda: self.config,
            create_optimization_profile=lambda: FakeProfile(self.refuse),
            build_serialized_network=self.build,
        )

    def network(self, flags):
        self.flags = flags
        return SimpleNamespace(
            num_inputs=1, num_outputs=1, get_input=lambda i: SimpleNamespace(name="images", shape=(-1, 3, 8, 8))
        )

    def parser(self):
        error = SimpleNamespace(node=lambda: 7, desc=lambda: "no such operator")  # as an older parser says it
        return SimpleNamespace(
            parse=lambda content: self.refuse != "parse", num_errors=1, get_error=lambda index: error
        )

    def build(self, network, config):
        self.built += 1
        return None if self.refuse == "build" else b"plan"


class FakeProfile:
    def __init__(self, refuse):
        self.refuse = refuse

    def __bool__(self):
        return self.refuse != "profile"

    def set_shape(self, name, least, usual, most):
        if self.refuse == "shapes":
            raise ValueError("inconsistent")


class FakeConfig:
    def __init__(self, trt):
        self.trt, self.pools, self.caches = trt, {}, []

    def set_memory_pool_limit(self, kind, size):
        self.pools[kind] = 0 if self.trt.refuse == "pool" else size

    def get_memory_pool_limit(self, kind):
        return self.pools[kind]

    def add_optimization_profile(self, profile):
        return -1 if self.trt.refuse == "add" else 0

    def create_timing_cache(self, content):
        return SimpleNamespace(content=content, serialize=lambda: b"timings of this device")

    def set_timing_cache(self, cache, *, ignore_mismatch):
        assert not ignore_mismatch
        self.caches.append(cache.content)
        return self.trt.refuse != "cache" and cache.content in self.trt.known


def options(**more):
    return TensorRtOptions(profiles=({"images": SHAPES},), **more)


def test_networks_are_strongly_typed():
    old, new = FakeTensorRt(), FakeTensorRt(typed=False)
    assert build_plan(b"onnx", options(), old.binding) == b"plan"
    assert build_plan(b"onnx", options(), new.binding) == b"plan"
    assert (old.flags, new.flags) == (2, 0)


def test_settings():
    trt = FakeTensorRt()
    build_plan(b"onnx", options(pools={"workspace": 5}, detailed=True, hardware_compatible=True, level=2), trt.binding)
    assert trt.config.pools == {"workspace": 5}
    assert trt.config.profiling_verbosity == "detailed"
    assert trt.config.hardware_compatibility_level == "ampere"
    assert trt.config.builder_optimization_level == 2
    with pytest.raises(ConfigError, match="use hardware_compatible"):
        build_plan(b"onnx", options(compute_capabilities=((8, 6),)), trt.binding)


def test_timings_are_kept(tmp_path):
    path, trt = tmp_path / "timings", FakeTensorRt()
    for _ in range(2):
        build_plan(b"onnx", options(timing_cache=path), trt.binding)
    assert trt.config.caches == [b"", b"timings of this device"]
    assert [each.name for each in tmp_path.iterdir()] == ["timings"]


def test_timings_of_another_device_are_measured_anew(tmp_path, caplog):
    path, trt = tmp_path / "timings", FakeTensorRt()
    path.write_bytes(b"of another device")
    build_plan(b"onnx", options(timing_cache=path), trt.binding)
    assert trt.config.caches == [b"of another device", b""]
    assert path.read_bytes() == b"timings of this device"
    assert "timed anew" in caplog.text


@pytest.mark.parametrize(
    ("refuse", "error", "words"),
    [
        ("builder", BackendUnavailableError, "no builder here: no driver"),
        ("parse", GraphError, "a node 7: no such operator"),
        ("pool", ConfigError, "refuses memory pool workspace=5"),
        ("shapes", ProfileError, "inconsistent"),
        ("profile", ProfileError, "no reason given"),
        ("add", ProfileError, "no reason given"),
        ("cache", BackendError, "takes no timing cache"),
        ("build", BackendError, "could not build the graph: no reason given"),
    ],
)
def test_every_answer_is_checked(tmp_path, refuse, error, words):
    trt = FakeTensorRt(refuse)
    with pytest.raises(error, match=words):
        build_plan(b"onnx", options(pools={"workspace": 5}, timing_cache=tmp_path / "timings"), trt.binding)
    assert trt.built == (refuse == "build")


def test_a_wrong_profile_is_refused_before_anything_is_built():
    trt = FakeTensorRt()
    with pytest.raises(ProfileError, match="dimension 0 of images has min 4, opt 2, max 4"):
        build_plan(b"onnx", TensorRtOptions(({"images": (SHAPES[2], SHAPES[1], SHAPES[2])},)), trt.binding)
    assert trt.built == 0
