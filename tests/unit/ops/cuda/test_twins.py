"""The functions for many pictures on a device, against the numpy ones; on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from facefleet import ops
from facefleet.ops import plan_letterbox
from tests.conftest import skip_without, smooth_picture

try:
    import torch

    from facefleet.ops import cuda
except ImportError:
    torch = None  # type: ignore[assignment]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if torch is None:
        skip_without("torch", 'needs pip install "facefleet[torch]"')
    if request.param == "cuda" and not torch.cuda.is_available():
        skip_without("gpu", "no CUDA device")
    return str(request.param)


def noise(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


SIZES = [(480, 640), (886, 1280), (33, 17), (640, 640), (1280, 1280), (200, 900), (1, 5), (427, 640)]


@pytest.mark.parametrize("make", [noise, lambda h, w, seed: smooth_picture(h, w, seed=seed)])
def test_letterbox_is_opencv_s(device: str, make) -> None:
    pictures = [make(height, width, seed) for seed, (height, width) in enumerate(SIZES)]
    plans = [plan_letterbox(width, height, 640, 32) for height, width in SIZES]
    drawn = cuda.letterbox(cuda.pack(pictures, device), plans).cpu().numpy()
    for picture, plan, got in zip(pictures, plans, drawn, strict=True):
        expected = ops.letterbox(picture, plan)
        assert np.abs(got.astype(int) - expected).max() <= 1, picture.shape
        assert (got != expected).mean() < 0.03, picture.shape


def test_alignment_is_the_same(device: str) -> None:
    draw = np.random.default_rng(0)
    landmarks = (draw.normal(size=(40, 5, 2)) * 30 + 200).astype(np.float32)
    landmarks[3] = np.nan
    landmarks[5] = 7.0
    landmarks[6, 2, 0] = np.inf
    expected, expected_usable = ops.alignment_matrices(landmarks)
    got, usable = cuda.alignment_matrices(torch.from_numpy(landmarks).to(device))
    assert np.array_equal(usable.cpu().numpy(), expected_usable)
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_chips_are_opencv_s(device: str) -> None:
    pictures = [smooth_picture(300, 400, seed=1), smooth_picture(90, 120, seed=2), noise(200, 200, 3)]
    draw = np.random.default_rng(1)
    which = draw.integers(0, 3, 30)
    scales = np.where(which == 1, 0.25, 1.0)
    spread = np.array([200.0, 200.0, 100.0])[which][:, None, None]
    landmarks = (
        ops.TEMPLATE_112 * draw.uniform(0.3, 3, (30, 1, 1)) + draw.normal(size=(30, 1, 2)) * spread / 3
    ).astype(np.float32)
    turn = draw.uniform(-1, 1, 30)
    rotation = np.stack([np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)], -1).reshape(30, 2, 2)
    landmarks = np.einsum("nij,nkj->nki", rotation, landmarks).astype(np.float32)
    matrices, usable = ops.alignment_matrices(landmarks)
    usable[4] = False
    got = cuda.warp_chips(
        cuda.pack(pictures, device),
        torch.from_numpy(which).to(device),
        torch.from_numpy(matrices).to(device),
        torch.from_numpy(usable).to(device),
        torch.from_numpy(scales).to(device),
    )
    for number, chip in enumerate(got.cpu().numpy()):
        picture, one = pictures[which[number]], slice(number, number + 1)
        (expected,) = ops.warp_chips(picture, matrices[one], usable[one], float(scales[number]))
        off = np.abs(chip.astype(int) - expected)
        if cv2.__version__ >= "5":
            assert off.max() <= 1, number
            assert off.mean() < 0.01, number
        else:  # places in steps of 1/32 pixel there
            assert off.mean() < 1.0, number


@pytest.mark.parametrize("seed", range(4))
def test_suppression_is_the_greedy_one(device: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    corner = draw.uniform(0, 60, (3, 120, 2))
    boxes = np.concatenate([corner, corner + draw.uniform(5, 30, (3, 120, 2))], axis=2).astype(np.float32)
    scores = np.sort(draw.uniform(0, 1, (3, 120)).astype(np.float32), axis=1)[:, ::-1].copy()
    valid = scores > 0.2
    kept = cuda.nms(*(torch.from_numpy(a).to(device) for a in (boxes, valid)), 0.4).cpu().numpy()
    for picture in range(3):
        index = np.flatnonzero(valid[picture])
        expected = index[ops.nms(boxes[picture, index], scores[picture, index], 0.4)]
        assert np.flatnonzero(kept[picture]).tolist() == sorted(expected.tolist())


def test_normalization(device: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
    vectors[2] = 0
    expected, expected_norms = ops.vector.l2_normalize(vectors)
    got, norms = cuda.l2_normalize(torch.from_numpy(vectors).to(device))
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(norms.cpu().numpy(), expected_norms, rtol=1e-6)


def test_blur_is_opencv_s(device: str) -> None:
    chips = np.stack([noise(112, 112, 0), smooth_picture(112, 112, seed=1), np.zeros((112, 112, 3), np.uint8)])
    aligned = np.array([True, True, False])
    got = cuda.blur_scores(torch.from_numpy(chips).to(device), torch.from_numpy(aligned).to(device))
    np.testing.assert_allclose(got.cpu().numpy(), ops.blur_scores(chips, aligned), rtol=1e-4, equal_nan=True)


def test_boxes_without_landmarks_are_the_same(device: str) -> None:
    boxes = np.array([[10, 20, 50, 90], [5, 5, 5, 5], [0, 0, np.nan, 4], [-3, 2, 400, 100]], np.float32)
    expected, expected_usable = ops.box_matrices(boxes)
    got, usable = cuda.box_matrices(torch.from_numpy(boxes).to(device))
    assert np.array_equal(usable.cpu().numpy(), expected_usable)
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_packing_by_many_hands(device: str) -> None:
    pictures = [noise(7, 5, 0), noise(3, 9, 1)[:, ::-1], noise(1, 1, 2)]
    with ThreadPoolExecutor(2) as pool:
        packed = cuda.pack(pictures, device, staging=torch.zeros(500, dtype=torch.uint8), each=pool.map)
    assert packed.data.cpu().numpy().tolist() == np.concatenate([each.reshape(-1) for each in pictures]).tolist()
    assert packed.offsets.tolist() == [0, 105, 186]
    assert packed.sizes.tolist() == [[7, 5], [3, 9], [1, 1]]
