"""Labeled faces found by every detector, one by one and in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recall import detect, score

# WIDER faces of 10 px or more, of 276, that an independent implementation found at 640 with the same networks.
FLOORS = {
    "scrfd_500m": 137,
    "scrfd_500m_bnkps": 137,
    "scrfd_2.5g": 177,
    "yunet_640": 143,
    "yunet_dynamic": 143,
    "retinaface_mobile0.25": 73,
}


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("name", list(FLOORS))
def test_recall(tmp_path: Path, data_dir: Path, name: str, backend: str) -> None:
    """Fault 25: batched and single results are equal for every picture, and no face is lost."""
    from data_packs import write_pack

    pack = write_pack(tmp_path, data_dir, name, "mobilefacenet")
    single = detect(data_dir, pack, batch=1, backend=backend, precision="auto")
    batched = detect(data_dir, pack, batch=8, backend=backend, precision="auto")
    found = score(data_dir, single)
    assert found.wider >= FLOORS[name]
    assert found.dlib == found.dlib_labeled == 43
    for key, faces in single.items():
        assert len(batched[key]) == len(faces)
        # ONNX Runtime may sum in another order in a batch.
        assert np.abs(batched[key].boxes - faces.boxes).max(initial=0) < 0.02
        cosine = np.einsum("nd,nd->n", batched[key].embeddings, faces.embeddings)
        assert cosine.min(initial=1) > 0.9999
