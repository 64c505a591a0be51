"""Every network of the data folder, built for every backend of the CPU, passes the gate on real photos."""

from __future__ import annotations

import importlib.util

import pytest

from data_packs import DETECTORS, EMBEDDERS, write_pack
from facefleet.models.build.build import Wanted, build_pack
from facefleet.models.build.engines import EngineStore
from facefleet.models.build.profile import Span
from facefleet.packs import Store

PAIRS = [
    *((detector, "mobilefacenet") for detector in DETECTORS),
    *(("yunet_dynamic", embedder) for embedder in EMBEDDERS if embedder != "mobilefacenet"),
]


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "torch"])
@pytest.mark.parametrize(("detector", "embedder"), [(None, None), *PAIRS])
def test_pack(tmp_path, data_dir, detector, embedder, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is an extra and not installed")
    pack = str(write_pack(tmp_path, data_dir, detector, embedder)) if detector else "opencv"
    store = Store()
    wanted = Wanted(
        backend=backend,
        batch=Span(1, 2, 4),
        size=Span(320, 320, 320),
        pictures=data_dir / "identity" / "insightface_images",
    )
    built = build_pack(store, store.manifest(pack), wanted, EngineStore(tmp_path / "engines"))
    assert [each.engine.role for each in built] == ["detector", "embedder"]
    for each in built:
        assert each.report is not None
        assert each.report.passed
        assert each.report.source in ("photos", "faces of photos")
