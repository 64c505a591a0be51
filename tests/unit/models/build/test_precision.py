"""Quantized graphs, and the search for the layers that stand it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from facefleet.backends import InputContract
from facefleet.errors import ConfigError, GraphError
from facefleet.models.build.auto import Place, fastest, search_precision
from facefleet.models.build.judge import DetectorJudge, EmbedderJudge, Guard, Pairs
from facefleet.models.build.lower import lowering, possible
from facefleet.models.build.pictures import read_pairs
from facefleet.models.build.plot import plot_search
from facefleet.models.build.quantize import Quantizer
from facefleet.models.build.recipe import read_recipe, recipe_text
from facefleet.models.build.search import search, table
from facefleet.packs import EmbedderSpec
from facefleet.packs.manifest import ModelFile
from facefleet.types import Detections
from tests.unit.models.build.test_engines import CONTRACT, network

LAYERS = tuple(f"layer{i}" for i in range(6))
HARM = dict(zip(LAYERS, (0.002, 0.5, 0.001, 0.3, 0.0, 0.004), strict=True))
BASE = np.random.default_rng(0).normal(0, 1, (40, 16)).astype(np.float32)
NOISE = np.random.default_rng(1).normal(0, 1, (6, 40, 16)).astype(np.float32)


def embed(high, timed):
    """A network whose layers each add their own error, and save a millisecond each when low."""
    low = [name for name in LAYERS if name not in high]
    noise = sum((HARM[name] * NOISE[LAYERS.index(name)] for name in low), np.zeros_like(BASE))
    return BASE + noise, 10.0 - len(low) if timed else math.nan


def test_only_the_harmful_layers_stay_high():
    result = search(embed, LAYERS, dict.fromkeys(LAYERS, 1.0), low="int8", judge=EmbedderJudge())
    assert result.chosen.high == {"layer1", "layer3"}
    assert result.chosen.holds
    assert result.speedup == pytest.approx(10 / 6)
    assert max(result.sensitivity, key=result.sensitivity.get) == "layer1"
    assert [row[0] for row in table(result, 2)] == ["layer1", "layer3"]


def test_nothing_stays_high_where_nothing_harms():
    result = search(
        embed,
        ("layer0", "layer4"),
        {"layer0": 1.0, "layer4": 1.0},
        low="int8",
        judge=EmbedderJudge(Guard(cosine_mean=0.5, cosine_min=0)),
    )
    assert result.chosen.high == frozenset()


def test_pairs_guard_accuracy():
    """Cosines are let go; only the verification of pairs may hold the harmful layer high."""
    people = np.random.default_rng(2).normal(0, 1, (20, 16)).astype(np.float32)
    vectors = np.repeat(people, 2, axis=0) + 0.1 * NOISE[0]

    def noisy(high, timed):
        del timed
        return vectors + (0 if "layer1" in high else 3.0) * NOISE[1], 1.0

    first = np.arange(0, 40, 2)
    pairs = Pairs(
        np.concatenate([first, first]),
        np.concatenate([first + 1, (first + 3) % 40]),
        np.arange(40) < 20,
        np.arange(40) % 4,
    )
    guard = Guard(cosine_mean=-1, cosine_min=-1, accuracy_loss=2.5, tar_loss=100)
    result = search(noisy, ("layer0", "layer1"), {}, low="int8", judge=EmbedderJudge(guard, pairs))
    assert result.chosen.high == {"layer1"}
    assert result.points[1].figures["accuracy_loss"] > 2.5
    with pytest.raises(ConfigError, match="cannot be seen in 40 pairs"):
        EmbedderJudge(Guard(), pairs)


def test_a_recipe_is_read_back_and_may_be_edited(tmp_path: Path):
    result = search(embed, LAYERS, dict.fromkeys(LAYERS, 1.0), low="int8", judge=EmbedderJudge())
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text(result))
    recipe = read_recipe(path)
    assert (recipe.role, recipe.low) == ("embedder", "int8")
    assert recipe.high(LAYERS) == result.chosen.high
    path.write_text(recipe_text(result).replace('"layer0" = "int8"', '"layer0" = "fp32"'))
    assert read_recipe(path).high(LAYERS) == result.chosen.high | {"layer0"}
    head = 'role = "embedder"\nlow = "int8"\n'
    for text, words in (
        (head + "[layers]\nlayer0 = 'fp8'", "use fp32 or int8"),
        (head, "not a recipe"),
        ("layers", "not a recipe"),
        (head.replace("embedder", "ear") + "[layers]", "role = 'ear'"),
        (head.replace("int8", "int4") + "[layers]", "bf16 or fp16 or int8"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_recipe(path)
    path.write_text(head + "[layers]\nnose = 'fp32'")
    with pytest.raises(ConfigError, match="no layer is called 'nose'"):
        read_recipe(path).high(LAYERS)


def test_the_plot_is_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib", reason='needs the extra: pip install "facefleet[bench]"')
    result = search(embed, LAYERS, dict.fromkeys(LAYERS, 1.0), low="int8", judge=EmbedderJudge())
    path = plot_search(result, tmp_path / "plot.png")
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def inputs() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (24, 3, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("calibration", ["percentile", "entropy"])
def test_layers_are_quantized_but_for_those_that_are_named(tmp_path, inputs, calibration):
    from facefleet.models.build.dynamic import session

    model = onnx.load(network(tmp_path / "m.onnx"))
    quantizer = Quantizer(model, inputs, calibration=calibration)
    assert quantizer.layers == ("conv1", "conv2")
    both, one, none = (quantizer.quantized(high) for high in ((), ("conv1",), ("conv1", "conv2")))
    counts = [sum(node.op_type == "QuantizeLinear" for node in each.graph.node) for each in (both, one, none)]
    assert counts == [2, 1, 0]
    want = session(model).run(None, {"images": inputs})[0]
    errors = [np.abs(session(each).run(None, {"images": inputs})[0] - want).max() for each in (both, one, none)]
    assert errors[2] < 1e-5
    assert all(1e-5 < error < 0.1 * np.abs(want).max() for error in errors[:2])
    scales = next(
        onnx.numpy_helper.to_array(t) for t in both.graph.initializer if t.name.startswith("w_") and "scale" in t.name
    )
    assert scales.shape == (6,), "weights have a scale a channel"
    with pytest.raises(GraphError, match="no layer is called 'nose'"):
        quantizer.quantized(["nose"])


SPEC = EmbedderSpec(
    family="arcface",
    source=(ModelFile(file="m.onnx"),),
    color="rgb",
    mean=(127.5,) * 3,
    std=(127.5,) * 3,
    dimension=8,
    threshold=0.3,
    height=16,
    width=16,
)


def lowered_search(model, low, backend, guard):
    chips = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3)).astype(np.uint8)
    lowered = lowering(low, model, SPEC, backend=backend, pictures=chips)
    return search_precision(model, SPEC, chips, lowered, place=Place(backend), judge=EmbedderJudge(guard)), lowered


@pytest.mark.parametrize(
    ("backend", "low"), [("openvino", "int8"), ("onnxruntime", "int8"), ("openvino", "bf16"), ("torch", "bf16")]
)
def test_search_on_a_real_backend(tmp_path, backend, low):
    pytest.importorskip(backend, reason="needs its extra")
    if low not in possible(backend, "cpu", "embedder"):
        pytest.skip("this CPU has no bf16")
    model = network(tmp_path / "m.onnx")
    result, lowered = lowered_search(model, low, backend, Guard(cosine_mean=0.5, cosine_min=0))
    assert result.chosen.high == frozenset()
    assert result.points[0].loss < 1e-9
    assert result.points[1].loss > 1e-9, "low is not the same"
    result, lowered = lowered_search(model, low, backend, Guard(cosine_mean=1 - 1e-12, cosine_min=1 - 1e-12))
    assert {"conv1", "conv2"} <= set(lowered.layers)
    assert result.chosen.high == set(lowered.layers)
    assert set(result.milliseconds) == set(lowered.layers)
    assert all(value > 0 for value in result.milliseconds.values())


def test_what_is_possible_where(monkeypatch):
    from facefleet.backends import openvino

    monkeypatch.setattr(openvino, "capabilities", lambda: frozenset({"BF16"}))
    assert possible("openvino", "cpu", "embedder") == ("bf16", "int8")
    assert possible("openvino", "cpu", "detector") == ("bf16",)
    monkeypatch.setattr(openvino, "capabilities", frozenset)
    assert possible("openvino", "cpu", "detector") == ()
    assert possible("onnxruntime", "cpu", "embedder") == ("int8",)
    assert possible("torch", "cuda:0", "detector") == ("fp16", "bf16")


def test_the_fastest_search_wins_and_none_where_fp32_is_faster():
    quick = search(embed, LAYERS, {}, low="int8", judge=EmbedderJudge(Guard(cosine_mean=0, cosine_min=-1)))
    some = search(embed, LAYERS, {}, low="bf16", judge=EmbedderJudge())
    none = search(embed, LAYERS, {}, low="fp16", judge=EmbedderJudge(Guard(cosine_mean=2)))
    assert fastest([some, quick, none]) is quick
    assert fastest([none]) is None
    assert fastest([]) is None


def faces(boxes, scores, shift=0.0):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    middle = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    landmarks = np.repeat(middle, 5, axis=1).astype(np.float32) + np.float32(shift)
    return Detections(boxes, landmarks, np.array(scores, np.float32), 200, 200)


@pytest.mark.parametrize(
    ("answer", "figure", "value", "holds"),
    [
        (faces([[0, 0, 50, 50], [100, 100, 180, 180]], [0.9, 0.8]), "iou_min", 1.0, True),
        (faces([[0, 0, 50, 50]], [0.9]), "lost", 1.0, False),
        (faces([[0, 0, 50, 50], [100, 100, 180, 180], [60, 0, 90, 30]], [0.9, 0.8, 0.7]), "lost", 1.0, False),
        (faces([[0, 0, 50, 45], [100, 100, 180, 180]], [0.9, 0.8]), "iou_min", 0.9, False),
        (faces([[0, 0, 50, 50], [100, 100, 180, 180]], [0.9, 0.8], 2.0), "landmark_max", 0.04, False),
        (faces([[0, 0, 50, 50], [100, 100, 180, 180]], [0.9, 0.7]), "score_max", 0.1, False),
    ],
)
def test_faces_of_a_detector_are_judged(answer, figure, value, holds):
    reference = faces([[0, 0, 50, 50], [100, 100, 180, 180]], [0.9, 0.8])
    nothing = faces(np.empty((0, 4)), [])
    verdict = DetectorJudge().compare([reference, nothing], [answer, nothing])
    assert verdict.figures[figure] == pytest.approx(value, abs=1e-5)
    assert verdict.holds is holds
    assert (verdict.loss == 0) is holds


def test_layers_are_timed_by_the_names_that_the_quantizer_gives(tmp_path):
    """Of SFace, whose layers carry names, and of the small network; else work would decide instead of time."""
    from facefleet.backends import RunnerOptions, create_runner
    from facefleet.models.prepare import prepare_embedder
    from facefleet.packs import Store

    store = Store()
    sface = prepare_embedder(store, store.manifest("opencv"), backend="openvino").path
    for model, side in ((sface, 112), (network(tmp_path / "m.onnx"), 16)):
        graph = onnx.load(model).graph
        with create_runner("openvino", model, CONTRACT, RunnerOptions(warm=((side, side),))) as runner:
            times = runner.layer_milliseconds(np.zeros((1, side, side, 3), np.uint8))
        layers = {node.name or node.output[0] for node in graph.node if node.op_type == "Conv"}
        assert layers <= set(times)


def test_work_is_counted_where_nothing_is_timed(tmp_path):
    from facefleet.models.build.work import gflop_by_layer

    work = gflop_by_layer(onnx.load(network(tmp_path / "m.onnx")), 16, 16)
    assert work == pytest.approx({"conv1": 2e-9 * 6 * 64 * 27, "conv2": 2e-9 * 5 * 16 * 24, "fc1": 2e-9 * 80 * 8})


def test_labeled_pairs_are_read(tmp_path: Path, astronaut_jpeg: bytes, data_free_detector):
    (tmp_path / "a.jpg").write_bytes(astronaut_jpeg)
    (tmp_path / "b.jpg").write_bytes(astronaut_jpeg)
    file = tmp_path / "pairs.tsv"
    file.write_text("a.jpg\tb.jpg\t1\nb.jpg\ta.jpg\t0\n")
    chips, pairs = read_pairs(file, data_free_detector, 112, 112)
    assert chips.shape == (2, 112, 112, 3)
    assert (chips[0] == chips[1]).all()
    assert pairs.first.tolist() == [0, 1]
    assert pairs.second.tolist() == [1, 0]
    assert pairs.same.tolist() == [True, False]
    for text, words in (("a.jpg b.jpg 1", "not a list of pairs"), ("a.jpg\tb.jpg\tyes", "tabs"), ("", "no pairs")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_pairs(file, data_free_detector, 112, 112)


@pytest.fixture
def data_free_detector():
    """The default pack's detector, open."""
    from facefleet.backends import RunnerOptions, create_runner
    from facefleet.models.detectors import Detector
    from facefleet.models.prepare import prepare_detector
    from facefleet.packs import Store

    store = Store()
    located = store.manifest("opencv")
    spec = located.manifest.detector
    path = prepare_detector(store, located, backend="onnxruntime").path
    contract = InputContract(spec.color, spec.mean, spec.std)
    with Detector(create_runner("onnxruntime", path, contract, RunnerOptions(warm=((640, 640),))), spec) as detector:
        yield detector
