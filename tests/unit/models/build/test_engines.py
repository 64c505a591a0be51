"""Engines: built once, published whole or not at all, found again by what they depend on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from facefleet.backends import InputContract
from facefleet.errors import EngineError, ParityError, ProfileError
from facefleet.models.build import engines as engines_module
from facefleet.models.build.build import Wanted, build_engine
from facefleet.models.build.engines import EngineSpec, EngineStore, key_of
from facefleet.models.build.parity import ParityReport, Refusal
from facefleet.models.build.profile import (
    Profile,
    Span,
    check_profile,
    check_profiles,
    estimate_memory,
    parse_profile,
    parse_sizes,
    parse_span,
)
from facefleet.models.build.trial import try_batches

CONTRACT = InputContract("rgb", (127.5,) * 3, (127.5,) * 3)
CHIP = Span(16, 16, 16)
WANTED = Wanted(backend="onnxruntime", profiles=(Profile(Span(1, 2, 4), CHIP, CHIP),))


def network(path: Path, *, seed: int = 0, fixed_reshape: bool = False) -> Path:
    """A small embedder: convolution, PRelu, 8 dimensions."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1], name="conv1"),
        helper.make_node("PRelu", ["c", "s"], ["p"], name="prelu1"),
        helper.make_node("Conv", ["p", "w2"], ["c2"], strides=[2, 2], name="conv2"),
        helper.make_node("Reshape", ["c2", "shape"], ["flat"], name="flatten1"),
        helper.make_node("MatMul", ["flat", "fc"], ["output"], name="fc1"),
    ]
    inits = {
        "w": random.normal(0, 0.3, (6, 3, 3, 3)),
        "s": random.uniform(0.1, 0.4, (6, 1, 1)),
        "w2": random.normal(0, 0.3, (5, 6, 2, 2)),
        "fc": random.normal(0, 0.2, (80, 8)),
    }
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in inits.items()]
    tensors.append(numpy_helper.from_array(np.array([1 if fixed_reshape else 0, 80], np.int64), "shape"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 8])],
        tensors,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)
    return path


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    return EngineSpec(
        name="small",
        role="embedder",
        model=network(tmp_path / "small.onnx"),
        contract=CONTRACT,
        backend="onnxruntime",
        precision="fp32",
        profiles=(Profile(Span(1, 2, 4), CHIP, CHIP),),
    )


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_an_engine_answers_as_the_reference_and_is_found_again(spec, tmp_path, backend):
    pytest.importorskip(backend, reason="needs its extra")
    store = EngineStore(tmp_path / "engines")
    spec = replace(spec, backend=backend)
    built = build_engine(spec, replace(WANTED, backend=backend), store)
    assert built.report is not None
    assert built.report.passed
    assert json.loads((built.engine.folder / "parity.json").read_text())["batches"] == [1, 2, 4]
    assert built.engine.problems() == built.engine.stale() == []
    again = build_engine(spec, WANTED, store)
    assert again.report is None
    assert again.engine == built.engine
    assert [each.key for each in store.engines()] == [built.engine.key]
    pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    with store.open(spec, built.engine, threads=1) as runner:
        assert runner.run(pictures)[0].shape == (3, 8)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_one_engine_of_several_profiles(spec, tmp_path, backend):
    """The gate runs every profile's batches; gaps between profiles are no gaps in what runs."""
    pytest.importorskip(backend, reason="needs its extra")
    profiles = (Profile(Span(1, 2, 2), CHIP, CHIP), Profile(Span(16, 16, 32), CHIP, CHIP))
    spec = replace(spec, backend=backend, profiles=profiles)
    store = EngineStore(tmp_path / "engines")
    built = build_engine(spec, replace(WANTED, backend=backend), store)
    assert built.report is not None
    assert built.report.batches == (1, 2, 16, 32)
    assert len(built.memory) == 2
    assert built.engine.facts["profiles"] == [each.to_json() for each in profiles]
    pictures = np.random.default_rng(0).integers(0, 256, (70, 16, 16, 3)).astype(np.uint8)
    with store.open(spec, built.engine, threads=1) as runner:
        whole = runner.run(pictures)[0]
        for count in (1, 3, 17, 33):
            assert np.allclose(runner.run(pictures[:count])[0], whole[:count], atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "int8"},
        {"mode": "latency"},
        {"contract": InputContract("bgr", (127.5,) * 3, (127.5,) * 3)},
        {"profiles": (Profile(Span(1, 2, 8), CHIP, CHIP),)},
        {"fp32_layers": ("conv1",)},
        {"backend": "openvino"},
    ],
)
def test_every_dependency_is_in_the_key(spec, change):
    assert key_of(replace(spec, **change).facts()) != key_of(spec.facts())


def test_another_model_runtime_or_device_is_another_engine(spec, tmp_path, monkeypatch):
    store = EngineStore(tmp_path / "engines")
    first = build_engine(spec, WANTED, store).engine
    network(spec.model, seed=1)
    assert store.find(spec) is None
    second = build_engine(spec, WANTED, store).engine
    assert second.key != first.key
    monkeypatch.setattr(engines_module, "runtime_version", lambda backend: f"{backend} 99")
    assert store.find(spec) is None
    assert "99" in second.stale()[0]
    assert build_engine(spec, WANTED, store).engine.key not in (first.key, second.key)
    assert len(store.prune()) == 2


def test_engines_of_an_older_version_are_not_used(spec, tmp_path):
    store = EngineStore(tmp_path / "engines")
    engine = build_engine(spec, WANTED, store).engine
    file = engine.folder / "engine.json"
    content = json.loads(file.read_text())
    content["facts"]["format"] = 1
    del content["facts"]["profiles"]
    file.write_text(json.dumps(content))
    assert store.match(spec, sides=((16, 16),)) is None
    assert store.engines()[0].stale() == ["it was built by an older version"]


def test_nothing_is_published_that_is_refused(spec, tmp_path):
    store = EngineStore(tmp_path / "engines")
    refused = ParityReport(False, "fp32", 1, "x", (1,), refusals=(Refusal("rows_swapped", 2, "row 1"),))
    with pytest.raises(ParityError, match="rows_swapped"):
        store.build(spec, lambda runner: refused, threads=1)
    assert store.engines() == []
    assert [path for path in store.folder.iterdir() if path.name != ".locks"] == []


def test_damage_is_found_and_pruned(spec, tmp_path):
    store = EngineStore(tmp_path / "engines")
    engine = build_engine(spec, WANTED, store).engine
    (engine.folder / "optimized.onnx").write_bytes(b"x")
    assert engine.problems() == ["optimized.onnx is not what was built"]
    assert store.prune() == [engine.folder.name]
    broken = store.folder / "broken"
    broken.mkdir()
    (broken / "engine.json").write_text("{")
    with pytest.raises(EngineError, match="not an engine"):
        store.engines()


BUILD = """
import sys, time
from pathlib import Path
from tests.unit.models.build.test_engines import CONTRACT, CHIP, WANTED
from facefleet.models.build.build import build_engine
from facefleet.models.build.engines import EngineSpec, EngineStore
from facefleet.models.build.profile import Profile, Span
import facefleet.backends.onnxruntime as backend
model, folder, slow = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
save = backend.OnnxRuntimeRunner._save_impl
def saving(self, target):
    save(self, target)
    Path(str(folder) + f".saving").open("a").write("x")
    time.sleep(slow)
backend.OnnxRuntimeRunner._save_impl = saving
spec = EngineSpec("small", "embedder", model, CONTRACT, "onnxruntime", "fp32", (Profile(Span(1, 2, 4), CHIP, CHIP),))
built = build_engine(spec, WANTED, EngineStore(folder))
print("built" if built.report else "found", built.engine.folder)
"""


def start(model: Path, folder: Path, slow: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(model), str(folder), str(slow)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )


def until_saving(folder: Path, builds: int, process: subprocess.Popen[str]) -> None:
    marker = Path(f"{folder}.saving")
    while not marker.exists() or len(marker.read_text()) < builds:
        assert process.poll() is None, "the build ended before it saved"
        time.sleep(0.02)


def test_two_processes_build_one_engine(spec, tmp_path):
    """One builds, the other waits for it, both get it."""
    folder = tmp_path / "engines"
    first = start(spec.model, folder, 1.5)
    until_saving(folder, 1, first)
    second = start(spec.model, folder, 0)
    answers = [process.communicate(timeout=60)[0].split() for process in (first, second)]
    assert answers[0][0] == "built"
    assert answers[0][1] == answers[1][1]
    assert Path(f"{folder}.saving").read_text() == "x", "built twice"
    assert len(EngineStore(folder).engines()) == 1


def test_a_killed_build_leaves_no_half_engine(spec, tmp_path):
    folder = tmp_path / "engines"
    process = start(spec.model, folder, 60)
    until_saving(folder, 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert EngineStore(folder).engines() == []
    assert [path.name for path in folder.iterdir() if path.suffix == ".part"] != []
    answer = start(spec.model, folder, 0).communicate(timeout=60)[0].split()
    assert answer[0] == "built"
    engines = EngineStore(folder).engines()
    assert len(engines) == 1
    assert engines[0].problems() == []
    assert [path.name for path in folder.iterdir() if path.suffix == ".part"] == []


class TestProfile:
    @pytest.mark.parametrize(
        ("batch", "words"),
        [((8, 4, 16), "min 8, opt 4, max 16 .*4, 8, 16"), ((1, 32, 16), "1, 16, 32"), ((0, 1, 2), "1 to 4096")],
    )
    def test_what_is_wrong_and_what_would_be_right(self, batch, words):
        with pytest.raises(ProfileError, match=words):
            Profile(Span(*batch), CHIP, CHIP)

    def test_fixed_dimensions_and_strides(self, spec):
        model = onnx.load(spec.model)
        with pytest.raises(ProfileError, match=r"height is 16/16/32, but the network's is fixed at 16"):
            check_profile(model, Profile(Span(1, 1, 1), Span(16, 16, 32), CHIP))
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
        with pytest.raises(ProfileError, match="use 96 or 128"):
            check_profile(model, Profile(Span(1, 1, 1), Span(100, 128, 128), CHIP), stride=32)

    def test_written_by_people(self):
        assert parse_span("640", what="size") == Span(640, 640, 640)
        assert parse_span("320..1280", what="size") == Span(320, 1280, 1280)
        assert parse_span("320..640..1280", what="size") == Span(320, 640, 1280)
        for text in ("", "a", "1..2..3..4"):
            with pytest.raises(ProfileError, match=r"320\.\.1280"):
                parse_span(text, what="size")

    def test_several_written_by_people(self):
        sizes = parse_sizes("320..640..1280x480", what="--size")
        assert sizes == (Span(320, 640, 1280), Span(480, 480, 480))
        assert parse_profile("1:8:16", sizes) == Profile(Span(1, 8, 16), *sizes)
        assert parse_profile("32:64:64@640", sizes) == Profile(Span(32, 64, 64), *[Span(640, 640, 640)] * 2)
        for text, words in (
            ("1:8", "MIN:OPT:MAX"),
            ("8:4:16", "'8:4:16': profile: batch has min 8, opt 4, max 16"),
            ("1:1:1@640..320", "'1:1:1@640..320': profile: height has min 640"),
            ("1:1:1@64x640..320", "width has min 640"),
            ("1:1:1@64xa", "size: width 'a'"),
        ):
            with pytest.raises(ProfileError, match=words):
                parse_profile(text, sizes)

    def test_the_wrong_one_of_several_is_named(self, spec):
        model, good = onnx.load(spec.model), Profile(Span(1, 1, 1), CHIP, CHIP)
        with pytest.raises(ProfileError, match="number 1, profile: width is 16/16/32"):
            check_profiles(model, (good, Profile(Span(1, 1, 1), CHIP, Span(16, 16, 32))))
        with pytest.raises(ProfileError, match=r"number 2, .*the same as number 0"):
            check_profiles(model, (good, Profile(Span(1, 2, 2), CHIP, CHIP), good))

    def test_memory_grows_with_the_largest_batch(self, spec):
        model = onnx.load(spec.model)
        small = estimate_memory(model, Profile(Span(1, 2, 4), CHIP, CHIP))
        large = estimate_memory(model, Profile(Span(1, 2, 64), CHIP, CHIP))
        # The picture and what the first convolution makes of it are the most that is alive at a time.
        assert small.opt_bytes == 2 * 4 * (3 * 16 * 16 + 6 * 8 * 8)
        assert large.max_bytes == 16 * small.max_bytes
        assert "warning" in large.summary()
        assert "warning" not in small.summary()
        assert Profile.from_json(Profile(Span(1, 2, 4), CHIP, CHIP).to_json()) == Profile(Span(1, 2, 4), CHIP, CHIP)


def test_the_node_with_a_fixed_batch_is_named(tmp_path):
    """Fault 26."""
    model = onnx.load(network(tmp_path / "m.onnx", fixed_reshape=True))
    pictures = np.zeros((2, 3, 16, 16), np.float32)
    trial = try_batches(model, [1, 2, 4], pictures)
    assert trial.verified == 1
    assert trial.node == "Reshape flatten1"
    assert "0 or -1" in trial.reason
    with pytest.raises(Exception, match="a batch above 1 fails in Reshape flatten1"):
        trial.require("m")
    assert try_batches(onnx.load(network(tmp_path / "m.onnx")), [1, 2, 4], pictures).verified == 4
