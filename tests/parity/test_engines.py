"""Every network of the data folder, built for every backend of the CPU, passes the gate on real photos."""

from __future__ import annotations

import importlib.util

import onnx
import pytest

from data_packs import DETECTORS, EMBEDDERS, write_pack
from facefleet import Engine, Settings
from facefleet.config import RuntimeSettings
from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.models.build.build import Wanted, build_pack
from facefleet.models.build.engines import EngineStore
from facefleet.models.build.profile import Profile, Span
from facefleet.models.prepare import prepare_detector, prepare_embedder
from facefleet.packs import Store

PAIRS = [
    *((detector, "mobilefacenet") for detector in DETECTORS),
    *(("yunet_dynamic", embedder) for embedder in EMBEDDERS if embedder != "mobilefacenet"),
]


def profile(side):
    return Profile(Span(1, 2, 4), *[Span(side, side, side)] * 2)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "torch"])
@pytest.mark.parametrize(("detector", "embedder"), [(None, None), *PAIRS])
def test_pack(tmp_path, data_dir, detector, embedder, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is an extra and not installed")
    pack = str(write_pack(tmp_path, data_dir, detector, embedder)) if detector else "opencv"
    store = Store()
    wanted = Wanted(
        backend=backend,
        profiles=(profile(320),),
        pictures=data_dir / "identity" / "insightface_images",
    )
    built = build_pack(store, store.manifest(pack), wanted, EngineStore(tmp_path / "engines"))
    assert [each.engine.role for each in built] == ["detector", "embedder"]
    for each in built:
        assert each.report is not None
        assert each.report.passed
        assert each.report.source in ("photos", "faces of photos")


BUILT = []


@pytest.fixture
def built(tmp_path_factory):
    """Engines of the default pack: fp32 for both networks, and an int8 embedder. Built once: it takes a while."""
    if not BUILT:
        folder = tmp_path_factory.mktemp("engines")
        store = Store()
        for precision in ("fp32", "int8"):
            wanted = Wanted(backend="openvino", profiles=(profile(640),), precision=precision)
            build_pack(store, store.manifest("opencv"), wanted, EngineStore(folder))
        BUILT.append(folder)
    return BUILT[0]


def faces_of(astronaut, **runtime):
    settings = Settings(runtime=RuntimeSettings(backend="openvino", **runtime))
    with Engine(settings) as engine:
        return engine.analyze(astronaut), engine.describe()


class TestEnginesInUse:
    def test_an_engine_stands_in_for_compiling(self, built, astronaut, caplog):
        compiled, _ = faces_of(astronaut, precision="fp32")
        with caplog.at_level("INFO", logger="facefleet"):
            opened, _ = faces_of(astronaut, precision="fp32", engines=str(built))
        assert any("embedder: engine" in record.message for record in caplog.records)
        assert (compiled.embeddings == opened.embeddings).all()

    def test_int8_runs_from_an_engine(self, built, astronaut):
        full, _ = faces_of(astronaut, precision="fp32")
        small, description = faces_of(astronaut, precision="int8", engines=str(built))
        assert description["precision"] == "detector fp32, embedder int8"
        cosine = float(full.embeddings[0] @ small.embeddings[0])
        assert 0.9 < cosine < 0.999999, "int8 is near, and not the same"

    def test_int8_without_one(self, tmp_path, astronaut):
        with pytest.raises(ConfigError, match=r"without runtime\.engines"):
            faces_of(astronaut, precision="int8")
        with pytest.raises(BackendUnavailableError, match="--precision int8"):
            faces_of(astronaut, precision="int8", engines=str(tmp_path))

    def test_layers_of_a_recipe(self, tmp_path, astronaut):
        """Both networks in bf16 but for the layers that a recipe keeps, built, found again, and run."""
        from facefleet.backends.openvino import capabilities
        from facefleet.models.build.recipe import read_recipe

        if "BF16" not in capabilities():
            pytest.skip("this CPU has no bf16")
        store, recipes = Store(), {}
        located = store.manifest("opencv")
        for role, prepare in (("detector", prepare_detector), ("embedder", prepare_embedder)):
            graph = onnx.load(prepare(store, located, backend="openvino").path).graph
            first = next(node.name or node.output[0] for node in graph.node if node.op_type == "Conv")
            file = tmp_path / f"{role}.toml"
            file.write_text(f'role = "{role}"\nlow = "bf16"\n[layers]\n"{first}" = "fp32"\n')
            recipes[role] = read_recipe(file)
        wanted = Wanted(backend="openvino", profiles=(profile(640),), recipes=recipes)
        made = build_pack(store, located, wanted, EngineStore(tmp_path / "engines"))
        assert [len(each.engine.facts["fp32_layers"]) for each in made] == [1, 1]
        assert [each.engine.facts["precision"] for each in made] == ["bf16", "bf16"]
        again = build_pack(store, located, wanted, EngineStore(tmp_path / "engines"))
        assert [each.engine for each in again] == [each.engine for each in made]
        full, _ = faces_of(astronaut, precision="fp32")
        low, _ = faces_of(astronaut, precision="bf16", engines=str(tmp_path / "engines"))
        assert 0.99 < float(full.embeddings[0] @ low.embeddings[0]) < 1

    def test_what_does_not_fit_is_said_and_compiled(self, built, astronaut, caplog, monkeypatch):
        """Fault 28: another runtime than it was built with."""
        from facefleet.models.build import engines

        monkeypatch.setattr(engines, "runtime_version", lambda backend: f"{backend} 99")
        with caplog.at_level("WARNING", logger="facefleet"):
            faces, _ = faces_of(astronaut, precision="fp32", engines=str(built))
        assert len(faces) == 1
        text = caplog.text
        assert "does not fit and is not used: runtime was openvino" in text
        assert "it is compiled now" in text
