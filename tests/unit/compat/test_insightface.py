"""insightface's calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from facefleet import Engine
from facefleet.compat.insightface import FaceAnalysis
from facefleet.errors import ClosedError, ConfigError, InvalidArrayError


@pytest.fixture(scope="module")
def app(home: object) -> Iterator[FaceAnalysis]:
    made = FaceAnalysis("opencv", root=str(home))
    made.prepare(ctx_id=-1, det_thresh=0.6, det_size=(640, 640))
    yield made
    made.close()


def test_get(app: FaceAnalysis, engine: Engine, astronaut: np.ndarray) -> None:
    bgr = np.ascontiguousarray(astronaut[..., ::-1])
    (face,) = app.get(bgr)
    ours = engine.analyze(astronaut)
    assert face.bbox == pytest.approx(ours.boxes[0], abs=1)
    assert face.kps.shape == (5, 2)
    assert face["det_score"] == face.det_score == pytest.approx(ours.scores[0])
    assert np.linalg.norm(face.normed_embedding) == pytest.approx(1, abs=1e-5)
    assert face.embedding_norm == pytest.approx(ours.norms[0], rel=1e-3)
    assert float(face.normed_embedding @ ours.embeddings[0]) > 0.999
    assert face.age is None


def test_max_num(app: FaceAnalysis, astronaut: np.ndarray) -> None:
    import cv2

    canvas = np.full((800, 800, 3), 90, np.uint8)
    canvas[100:612, 80:592] = astronaut
    canvas[600:800, 600:800] = cv2.resize(astronaut, (200, 200))
    bgr = np.ascontiguousarray(canvas[..., ::-1])
    assert len(app.get(bgr)) == 2
    (largest,) = app.get(bgr, max_num=1)
    assert largest.bbox[2] < 592


def test_no_recognition(home: object, astronaut: np.ndarray) -> None:
    detect_only = FaceAnalysis("opencv", root=str(home), allowed_modules=["detection"])
    detect_only.prepare(det_size=(320, 320))
    (face,) = detect_only.get(np.ascontiguousarray(astronaut[..., ::-1]))
    assert face.embedding is None
    assert face.normed_embedding is None
    detect_only.close()


def test_errors(app: FaceAnalysis) -> None:
    with pytest.raises(ClosedError, match="prepare"):
        FaceAnalysis("opencv").get(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(InvalidArrayError):
        app.get(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArrayError):
        app.get(np.zeros((4, 4), np.uint8))
    with pytest.raises(ConfigError):
        FaceAnalysis("opencv", allowed_modules=["genderage"])
    with pytest.raises(ConfigError):
        FaceAnalysis("opencv", providers=["CUDAExecutionProvider"])
    with pytest.raises(ConfigError, match="equal sides"):
        FaceAnalysis("opencv").prepare(det_size=(640, 480))
