"""Real published graphs: made batchable, recognised, and equal to themselves as published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_packs import DETECTORS, EMBEDDERS, write_pack
from facefleet.backends import InputContract, RunnerOptions, create_runner
from facefleet.config import DecodeSettings
from facefleet.decode import Decoder
from facefleet.models.build import inspect_model
from facefleet.models.build.dynamic import session
from facefleet.models.detectors import Detector, SparseHead
from facefleet.models.prepare import prepare_detector, prepare_embedder
from facefleet.ops import letterbox, plan_letterbox
from facefleet.packs import Store

LAYOUTS = {"scrfd": "scrfd: strides 8, 16, 32, 2 anchors", "yunet": "yunet", "retinaface": "retinaface"}


@pytest.mark.parametrize("name", list(DETECTORS))
def test_detectors(tmp_path: Path, home: Path, data_dir: Path, name: str) -> None:
    """Batch and size are free; rows of a batch equal singles at sizes other than the declared one."""
    located = Store(home).manifest(str(write_pack(tmp_path, data_dir, name, "mobilefacenet")))
    prepared = prepare_detector(Store(home), located, backend="openvino")
    report = json.loads((prepared.path.parent / "report.json").read_text())
    assert max(report["errors"].values()) <= 1e-4
    run = session(prepared.path)
    random = np.random.default_rng(0)
    for height, width in ((320, 320), (448, 640)):
        pictures = random.normal(0, 1, (3, 3, height, width)).astype(np.float32)
        batch = run.run(None, {"images": pictures})
        single = run.run(None, {"images": pictures[2:]})
        for b, s in zip(batch, single, strict=True):
            # float32 sums in another order, relative to the output's largest value
            assert np.abs(b[2] - s[0]).max() <= 1e-4 * max(1.0, np.abs(s).max())
    layout = inspect_model(data_dir / "models" / str(DETECTORS[name]["file"])).layout
    assert layout.startswith(LAYOUTS[str(DETECTORS[name]["family"])])


def test_a_head_of_two_branches_stays_whole(tmp_path: Path, home: Path, data_dir: Path) -> None:
    """SCRFD-2.5G finds scores and boxes from different features."""
    located = Store(home).manifest(str(write_pack(tmp_path, data_dir, "scrfd_2.5g", "mobilefacenet")))
    assert prepare_detector(Store(home), located, backend="openvino", sparse=True).last is None


@pytest.mark.parametrize("name", ["scrfd_500m", "scrfd_500m_bnkps"])
def test_scrfd_without_its_last_layers(tmp_path: Path, home: Path, data_dir: Path, name: str) -> None:
    """They are computed where there are faces: the same faces as of the whole network, in each precision of a CPU."""
    located = Store(home).manifest(str(write_pack(tmp_path, data_dir, name, "mobilefacenet")))
    spec = located.manifest.detector
    contract = InputContract(spec.color, spec.mean, spec.std)
    pixels = (
        Decoder(DecodeSettings()).decode((data_dir / "identity" / "insightface_images" / "t1.jpg").read_bytes()).pixels
    )
    picture = letterbox(pixels, plan_letterbox(pixels.shape[1], pixels.shape[0], 640, 32))[None]
    found = []
    for backend, precision, sparse in (
        ("onnxruntime", "fp32", False),
        ("onnxruntime", "fp32", True),
        ("openvino", "fp32", True),
    ):
        prepared = prepare_detector(Store(home), located, backend=backend, precision=precision, sparse=sparse)
        assert (prepared.last is not None) == sparse
        head = SparseHead.load(prepared.last) if prepared.last else None
        runner = create_runner(backend, prepared.path, contract, RunnerOptions(warm=((640, 640),)))
        with Detector(runner, spec, heads=(head, None)) as detector:
            found.append(detector.infer(picture, 0.5)[0])
    assert len(found[0].scores) > 6
    for each in found[1:]:
        assert np.abs(each.scores - found[0].scores).max() < 1e-4
        assert np.abs(each.boxes - found[0].boxes).max() < 1e-2


@pytest.mark.parametrize("name", list(EMBEDDERS))
@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_embedders(tmp_path: Path, home: Path, data_dir: Path, name: str, backend: str) -> None:
    located = Store(home).manifest(str(write_pack(tmp_path, data_dir, "scrfd_500m", name)))
    prepared = prepare_embedder(Store(home), located, backend=backend)
    width = int(EMBEDDERS[name].get("width", 112))  # type: ignore[call-overload]
    pictures = np.random.default_rng(0).normal(0, 1, (4, 3, 112, width)).astype(np.float32)
    assert session(prepared.path).run(None, {"images": pictures})[0].shape == (4, 128)
    operators = inspect_model(prepared.path).operators
    assert backend != "onnxruntime" or "PRelu" not in operators


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_default_pack(home: Path, backend: str) -> None:
    """The int8 files of the pinned dependency, which no runtime loads as shipped."""
    store = Store(home)
    located = store.manifest("opencv")
    for prepare in (prepare_detector, prepare_embedder):
        prepared = prepare(store, located, backend=backend)
        report = json.loads((prepared.path.parent / "report.json").read_text())
        assert max(report["errors"].values()) <= 1e-4
        assert report["changes"]["constants dequantized"] > 50
        assert "DequantizeLinear" not in inspect_model(prepared.path).operators
