"""Array functions against independent answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.transform import SimilarityTransform

from facefleet.errors import ConfigError, InvalidArrayError
from facefleet.ops import (
    TEMPLATE_112,
    alignment_matrices,
    blur_scores,
    box_matrices,
    l2_normalize,
    letterbox,
    nms,
    plan_letterbox,
    pose_degrees,
    warp_chips,
)
from tests.conftest import smooth_picture


class TestLetterbox:
    @given(st.integers(1, 5000), st.integers(1, 5000), st.integers(32, 1300))
    @settings(max_examples=200, deadline=None)
    def test_sides_and_scale(self, width: int, height: int, size: int) -> None:
        """Fault 7: any size is rounded up to the stride; the content touches the square and never leaves it."""
        plan = plan_letterbox(width, height, size, 32)
        side = -(-size // 32) * 32
        assert (plan.width, plan.height) == (side, side)
        assert 1 <= plan.content_width <= side
        assert 1 <= plan.content_height <= side
        assert max(plan.content_width, plan.content_height) == side
        corner = plan.to_original(np.array([[plan.content_width, plan.content_height]], np.float32))
        assert corner[0] == pytest.approx([width, height], rel=1e-5)

    def test_native(self) -> None:
        plan = plan_letterbox(250, 250, "native", 32)
        assert (plan.width, plan.height, plan.scale_x, plan.scale_y) == (256, 256, 1.0, 1.0)

    @pytest.mark.parametrize(
        ("size", "expected"), [((250, 250), (384, 384)), ((1280, 886), (640, 448)), ((500, 300), (512, 320))]
    )
    def test_tight(self, size: tuple[int, int], expected: tuple[int, int]) -> None:
        plan = plan_letterbox(*size, 640, 32, tight_px=384)
        assert (plan.width, plan.height) == expected

    def test_content_is_top_left_and_the_rest_zero(self) -> None:
        for width, height in ((64, 32), (32, 64)):
            pixels = np.full((height, width, 3), 200, np.uint8)
            canvas = letterbox(pixels, plan_letterbox(width, height, 128, 32))
            half = canvas[:64] if width > height else canvas[:, :64]
            rest = canvas[64:] if width > height else canvas[:, 64:]
            assert canvas.shape == (128, 128, 3)
            assert (half == 200).all()
            assert (rest == 0).all()

    def test_bad_size(self) -> None:
        with pytest.raises(ConfigError):
            plan_letterbox(10, 10, "big", 32)
        with pytest.raises(InvalidArrayError, match="native"):
            plan_letterbox(20000, 10, "native", 32)


class TestNms:
    def test_against_a_plain_loop(self) -> None:
        random = np.random.default_rng(0)
        for _ in range(20):
            low = random.uniform(0, 80, (60, 2))
            boxes = np.concatenate([low, low + random.uniform(5, 40, (60, 2))], axis=1).astype(np.float32)
            scores = random.uniform(0, 1, 60).astype(np.float32)
            expected: list[int] = []
            for i in np.argsort(-scores):
                if all(_iou(boxes[i], boxes[j]) <= 0.4 for j in expected):
                    expected.append(int(i))
            assert nms(boxes, scores, 0.4).tolist() == expected
            assert nms(boxes, scores, 0.4, limit=5).tolist() == expected[:5]

    def test_empty(self) -> None:
        assert len(nms(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5)) == 0

    def test_equal_scores_keep_their_order(self) -> None:
        boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]], np.float32)
        assert nms(boxes, np.ones(3, np.float32), 0.5).tolist() == [0, 1, 2]


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


class TestAlignment:
    def test_golden_matrix(self) -> None:
        """Fault 13: landmarks on the template give the identity; moved, scaled and turned ones the inverse of that."""
        angle, zoom, shift = 0.3, 2.5, np.array([40.0, -7.0])
        turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = np.stack([TEMPLATE_112, TEMPLATE_112 @ turn.T + shift]).astype(np.float32)
        matrices, usable = alignment_matrices(points)
        assert usable.all()
        assert matrices[0] == pytest.approx(np.eye(3)[:2], abs=1e-5)
        inverse = np.linalg.inv(turn)
        assert matrices[1][:, :2] == pytest.approx(inverse, abs=1e-5)
        assert matrices[1][:, 2] == pytest.approx(-inverse @ shift, abs=1e-3)

    def test_against_scikit_image(self) -> None:
        random = np.random.default_rng(3)
        points = (TEMPLATE_112 * 1.7 + random.normal(0, 6, (50, 5, 2)) + 30).astype(np.float32)
        matrices, _ = alignment_matrices(points)
        for landmarks, matrix in zip(points, matrices, strict=True):
            expected = SimilarityTransform.from_estimate(landmarks, TEMPLATE_112)
            assert matrix == pytest.approx(expected.params[:2], abs=2e-3)

    @pytest.mark.parametrize(
        "landmarks", [np.zeros((5, 2)), np.full((5, 2), np.nan), np.full((5, 2), 1e30), np.full((5, 2), np.inf)]
    )
    def test_degenerate_landmarks(self, landmarks: np.ndarray) -> None:
        """Fault 12: no transform for that face, no crash, and its neighbor is untouched."""
        both = np.stack([landmarks, TEMPLATE_112]).astype(np.float32)
        matrices, usable = alignment_matrices(both)
        assert usable.tolist() == [False, True]
        assert np.isnan(matrices[0]).all()
        chips = warp_chips(smooth_picture(120, 120), matrices, usable)
        assert not chips[0].any()
        assert chips[1].any()

    def test_identity_copies(self) -> None:
        picture = smooth_picture(112, 112)
        matrices, usable = alignment_matrices(TEMPLATE_112[None].astype(np.float32))
        chip = warp_chips(picture, matrices, usable)[0]
        assert np.abs(chip.astype(int) - picture).max() <= 1

    def test_beyond_the_border_is_black(self) -> None:
        """Fault 9: a face at the border."""
        matrices, usable = alignment_matrices((TEMPLATE_112 - 60)[None].astype(np.float32))
        chip = warp_chips(np.full((112, 112, 3), 255, np.uint8), matrices, usable)[0]
        assert not chip[:59].any()
        assert (chip[61:, 61:] == 255).all()

    def test_reduced_picture_gives_the_same_chip(self) -> None:
        import cv2

        picture = smooth_picture(400, 400)
        small = cv2.resize(picture, (200, 200), interpolation=cv2.INTER_AREA)
        matrices, usable = alignment_matrices((TEMPLATE_112 * 3 + 20)[None].astype(np.float32))
        full = warp_chips(picture, matrices, usable)[0].astype(int)
        reduced = warp_chips(small, matrices, usable, 0.5)[0].astype(int)
        assert np.abs(full - reduced).max() <= 3

    def test_box_without_landmarks(self) -> None:
        matrices, usable = box_matrices(np.array([[10, 20, 50, 100], [5, 5, 5, 5]], np.float32))
        assert usable.tolist() == [True, False]
        assert matrices[0] @ np.array([30, 60, 1]) == pytest.approx([56, 56], abs=1e-4)
        assert matrices[0][0, 0] == pytest.approx(112 / 120)


class TestQuality:
    def test_blur_falls_when_blurred(self) -> None:
        import cv2

        sharp = np.random.default_rng(0).integers(0, 255, (112, 112, 3)).astype(np.uint8)
        soft = cv2.GaussianBlur(sharp, (9, 9), 3)
        scores = blur_scores(np.stack([sharp, soft, soft]), np.array([True, True, False]))
        assert scores[0] > 10 * scores[1] > 0
        assert np.isnan(scores[2])

    def test_pose(self) -> None:
        angle = np.radians(20)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        moved = TEMPLATE_112.copy()
        moved[2, 0] += 8
        points = np.stack([TEMPLATE_112, TEMPLATE_112 @ turn.T, moved]).astype(np.float32)
        yaw, pitch, roll = pose_degrees(points)
        assert abs(yaw[0]) < 3
        assert abs(pitch[0]) < 10
        assert abs(roll[0]) < 1
        assert roll[1] == pytest.approx(20, abs=1)
        assert yaw[1] == pytest.approx(yaw[0], abs=0.5)
        assert yaw[2] > 15
        assert all(np.isnan(v).all() for v in pose_degrees(np.full((1, 5, 2), np.nan, np.float32)))


def test_l2_normalize() -> None:
    unit, norms = l2_normalize(np.array([[3, 4], [0, 0]], np.float32))
    assert np.allclose(unit, [[0.6, 0.8], [0, 0]])
    assert norms.tolist() == [5, 0]
