"""The accuracy guard and the self-test, on models that are made to fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facefleet import Engine, Settings
from facefleet.errors import SelfTestError
from facefleet.models import guard
from facefleet.models.detectors import Detector
from facefleet.models.drawn import drawn_chips, drawn_face, drawn_scene
from facefleet.models.embedders import Embedder


def test_drawn_faces_are_found(engine: Engine) -> None:
    scene = drawn_scene(640, 640)
    faces = engine.analyze(scene)
    assert len(faces) == 6
    assert np.array_equal(drawn_face(64, seed=1), drawn_face(64, seed=1))
    assert not np.array_equal(drawn_chips(2)[0], drawn_chips(2)[1])
    assert drawn_chips(3, 112, 96).shape == (3, 112, 96, 3)


def test_verdict_is_measured_once(tmp_path: Path) -> None:
    calls = []

    def measure() -> dict[str, float | bool]:
        calls.append(1)
        return {"holds": False, "cosine_min": 0.5}

    for _ in range(2):
        assert not guard.remembered(tmp_path, ["sha", "openvino", "bf16"], measure)
    assert not guard.remembered(tmp_path, ["other", "openvino", "bf16"], measure)
    assert len(calls) == 2


class _Noisy:
    """A stand-in for an embedder, off by some noise."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def __enter__(self) -> _Noisy:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def embed(self, chips: np.ndarray) -> object:
        from facefleet.ops import l2_normalize
        from facefleet.types import Embeddings

        flat = chips.reshape(len(chips), -1)[:, :512].astype(np.float32) - 100
        noise = np.random.default_rng(0).normal(0, self.noise, flat.shape).astype(np.float32)
        return Embeddings(*l2_normalize(flat + noise * np.abs(flat).mean()))


@pytest.mark.parametrize(("noise", "holds"), [(0.01, True), (1.0, False)])
def test_embedders_are_compared(noise: float, holds: bool) -> None:
    """Fault 16: too much loss and the precision is not used."""
    verdict = guard.compare_embedders(lambda: _Noisy(0), lambda: _Noisy(noise))  # type: ignore[arg-type,return-value]
    assert verdict["holds"] is holds


def test_engine_falls_back_when_the_guard_fails(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from facefleet.backends import registry
    from facefleet.models import load

    if not registry._cpu_has_bf16():
        pytest.skip("this CPU has no bf16")
    monkeypatch.setattr(load, "remembered", lambda *_: False)
    with Engine(Settings(home=str(home))) as opened:
        assert opened.describe()["precision"] == "fp32"
    assert "runs in fp32" in caplog.text


class TestSelfTest:
    """Fault 18: a broken runtime never becomes ready."""

    def test_same_vector_for_every_face(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Embedder, "raw", lambda self, chips: np.ones((len(chips), self.dimension), np.float32))
        with pytest.raises(SelfTestError, match="does not tell faces apart"):
            Engine(Settings(home=str(home))).open()

    def test_faces_everywhere(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Detector.infer
        monkeypatch.setattr(Detector, "infer", lambda self, inputs, threshold: real(self, inputs, -1.0))
        with pytest.raises(SelfTestError, match="blank"):
            Engine(Settings(home=str(home))).open()
