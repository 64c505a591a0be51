"""Heads read and faces settled as tensors, against the functions for one picture."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "facefleet[torch]"')

import torch

from facefleet.models.detectors import Selection, create_head, settle
from facefleet.models.detectors import device as on_device
from facefleet.ops import plan_letterbox
from facefleet.packs import DetectorSpec, ModelFile

SIDE = 320
FRAMES = ((640, 443), (150, 250), (320, 320))


def scrfd(draw: np.random.Generator) -> tuple[list[tuple[str, int]], list[np.ndarray]]:
    cells = [2 * (SIDE // stride) ** 2 for stride in (8, 16, 32)]
    outputs = [(f"{kind}{stride}", width) for kind, width in (("s", 1), ("b", 4), ("k", 10)) for stride in (8, 16, 32)]
    # Many equal scores, as 16 bits give.
    scores = [np.round(draw.beta(0.2, 4, (3, count, 1)), 2) for count in cells]
    boxes = [draw.uniform(0.5, 4, (3, count, 4)) for count in cells]
    points = [draw.normal(size=(3, count, 10)) for count in cells]
    return outputs, [each.astype(np.float32) for each in (*scores, *boxes, *points)]


def retinaface(draw: np.random.Generator) -> tuple[list[tuple[str, int]], list[np.ndarray]]:
    count = sum(2 * (SIDE // stride) ** 2 for stride in (8, 16, 32))
    score = np.round(draw.beta(0.2, 4, (3, count, 1)), 2)
    arrays = [
        draw.normal(size=(3, count, 4)) / 4,
        np.concatenate([1 - score, score], 2),
        draw.normal(size=(3, count, 10)),
    ]
    return [("loc", 4), ("conf", 2), ("landms", 10)], [each.astype(np.float32) for each in arrays]


@pytest.mark.parametrize("family", ["scrfd", "retinaface"])
@pytest.mark.parametrize(
    "select",
    [
        Selection(0.5, 0.4),
        Selection(0.5, 0.4, max_faces=5, order="area"),
        Selection(0.5, 0.4, max_faces=3, order="center", min_face_px=20),
        Selection(0.97, 0.4),
    ],
)
def test_a_batch_is_settled_as_its_pictures_are(family: str, select: Selection) -> None:
    outputs, raw = (scrfd if family == "scrfd" else retinaface)(np.random.default_rng(3))
    tensors = [torch.from_numpy(each) for each in raw]
    head, batch_head = create_head(family, outputs), on_device.HEADS[family](outputs)
    plans = [plan_letterbox(width, height, SIDE, 32) for width, height in FRAMES]
    thresholds = torch.full((3,), select.score)
    found = batch_head.batch_candidates(tensors, SIDE, SIDE, thresholds)
    assert not found.more.any()
    assert found.finite.all()
    scales = torch.tensor([[plan.scale_x, plan.scale_y] for plan in plans], dtype=torch.float32)
    got = on_device.settle([(found, scales)], torch.tensor(FRAMES, dtype=torch.float32), select)
    some = 0
    for row, (plan, (width, height)) in enumerate(zip(plans, FRAMES, strict=True)):
        one = head.candidates(raw, row, SIDE, SIDE, select.score)
        expected = settle([(plan, one)], width, height, select)
        count = int(got.counts[row])
        some += count
        assert count == len(expected)
        np.testing.assert_allclose(got.boxes[row, :count], expected.boxes, rtol=1e-5, atol=1e-3)
        assert expected.landmarks is not None
        assert got.landmarks is not None
        np.testing.assert_allclose(got.landmarks[row, :count], expected.landmarks, rtol=1e-5, atol=1e-3)
        np.testing.assert_array_equal(got.scores[row, :count], expected.scores)
        assert float(got.best_rejected[row]) == pytest.approx(expected.best_rejected)
    assert some or select.score > 0.9


def test_what_is_not_finite_and_what_is_too_much_is_said() -> None:
    outputs, raw = scrfd(np.random.default_rng(0))
    raw[0][1] = 0.9
    raw[4][2, 7] = np.nan
    head = on_device.DeviceScrfdHead(outputs)
    found = head.batch_candidates([torch.from_numpy(each) for each in raw], SIDE, SIDE, torch.full((3,), 0.5))
    assert found.more.tolist() == [False, True, False]
    assert found.finite.tolist() == [True, True, False]


def test_without_landmarks() -> None:
    outputs, raw = scrfd(np.random.default_rng(1))
    head = on_device.DeviceScrfdHead(outputs[:6])
    found = head.batch_candidates([torch.from_numpy(each) for each in raw[:6]], SIDE, SIDE, torch.full((3,), 0.5))
    got = on_device.settle([(found, torch.ones(3, 2))], torch.full((3, 2), 320.0), Selection(0.5, 0.4))
    assert found.landmarks is None
    assert got.landmarks is None
    assert got.counts.min() > 0


def test_the_strongest_are_in_the_order_of_a_stable_sort() -> None:
    scores = np.random.default_rng(0).integers(0, 9, (4, 300)).astype(np.float32) / 8
    got = on_device.strongest(torch.from_numpy(scores), 50).numpy()
    assert np.array_equal(got, np.argsort(-scores, axis=1, kind="stable")[:, :50])


def test_which_detectors_are_for_it() -> None:
    def spec(family: str, fit: str = "square") -> DetectorSpec:
        return DetectorSpec(
            family=family, source=(ModelFile(file="x.onnx"),), color="rgb", mean=(0.0,) * 3, std=(1.0,) * 3, fit=fit
        )

    assert not on_device.why_not(spec("scrfd"), (640,))
    assert "yunet" in on_device.why_not(spec("yunet"), (640,))
    assert "sizes" in on_device.why_not(spec("scrfd", "tight"), (640,))
    assert "sizes" in on_device.why_not(spec("scrfd"), (640, "native"))
