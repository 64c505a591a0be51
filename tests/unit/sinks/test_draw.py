"""Faces drawn into pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from facefleet.sinks import draw_faces
from facefleet.types import Faces
from tests.unit.jobs.fake import faces_of

GREEN, RED, YELLOW = (40, 220, 60), (235, 60, 50), (250, 210, 40)


def face_at(box: tuple[float, float, float, float], width: int, height: int, *, status: int = 0) -> Faces:
    faces = faces_of("", b"x", count=1)
    x1, y1, x2, y2 = box
    points = np.array([[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.8], [0.65, 0.8]], np.float32)
    return replace(
        faces,
        width=width,
        height=height,
        boxes=np.array([box], np.float32),
        landmarks=(points * (x2 - x1, y2 - y1) + (x1, y1)).astype(np.float32)[None],
        scores=np.array([0.875], np.float32),
        status=np.array([status], np.uint8),
    )


def colored(pixels: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    return (pixels == color).all(axis=2)


@pytest.mark.parametrize(("width", "height"), [(40, 30), (320, 240), (640, 480), (8000, 6000)])
def test_box_landmarks_and_score_on_small_and_large_pictures(width: int, height: int) -> None:
    blank = np.full((height, width, 3), 128, np.uint8)
    box = (0.4 * width, 0.4 * height, 0.6 * width, 0.7 * height)
    faces = face_at(box, width, height)
    drawn = draw_faces(blank, faces)
    assert drawn.shape == blank.shape
    assert drawn.dtype == np.uint8
    assert (blank == 128).all(), "the picture itself is left alone"
    green = colored(drawn, GREEN)
    for x, y in faces.landmarks[0]:
        assert green[round(float(y)), round(float(x))]
    x1, y1, x2, y2 = faces.boxes_int[0]
    assert green[y1 + 2 : y2 - 2, x1].all()
    assert green[y1, x1 + 2 : x2 - 2].all()
    # The score: black on green, above the box, and as large a part of a large picture as of a small one.
    label = drawn[: y1 - 1]
    assert colored(label, GREEN).any()
    if width >= 640:
        rows = np.flatnonzero(colored(label, GREEN).any(axis=1))
        assert 0.015 < len(rows) / height < 0.06


def test_lines_grow_with_the_picture() -> None:
    thickness = []
    for width in (300, 1200, 8000):
        faces = face_at((0.3 * width, 0.3 * width, 0.6 * width, 0.6 * width), width, width)
        drawn = draw_faces(np.zeros((width, width, 3), np.uint8), faces)
        thickness.append(int(colored(drawn, GREEN)[round(0.55 * width), : round(0.4 * width)].sum()))
    assert thickness[0] < thickness[1] < thickness[2]


def test_colors_and_labels() -> None:
    blank = np.zeros((200, 400, 3), np.uint8)
    faces = face_at((100, 80, 200, 180), 400, 200)
    assert colored(draw_faces(blank, faces, highlight=0), YELLOW).any()
    failed = draw_faces(blank, face_at((100, 80, 200, 180), 400, 200, status=1))
    assert colored(failed, RED).any()
    assert not colored(failed, GREEN).any()
    short, long = (draw_faces(blank, faces, labels=[text]) for text in ("A", "a long label"))
    assert colored(long, GREEN).sum() > colored(short, GREEN).sum()


@pytest.mark.parametrize(
    "box", [(-50, -50, 30, 30), (380, 180, 500, 400), (-10, 50, 500, 150), (0, 0, 400, 200), (390, 0, 399.5, 5)]
)
def test_faces_at_and_over_the_border(box: tuple[float, float, float, float]) -> None:
    """Fault 9."""
    drawn = draw_faces(np.zeros((200, 400, 3), np.uint8), face_at(box, 400, 200))
    assert colored(drawn, GREEN).any()


def test_no_landmarks_and_no_faces() -> None:
    blank = np.zeros((200, 400, 3), np.uint8)
    faces = face_at((100, 80, 200, 180), 400, 200)
    without = replace(faces, landmarks=np.full((1, 5, 2), np.nan, np.float32))
    assert colored(draw_faces(blank, without), GREEN).any()
    assert not colored(draw_faces(blank, without), GREEN)[110:150, 110:190].any()
    assert (draw_faces(blank, faces_of("", b"", count=0)) == blank).all()


def test_a_label_does_not_hide_a_small_face() -> None:
    drawn = draw_faces(np.zeros((24, 24, 3), np.uint8), face_at((4, 3, 18, 21), 24, 24))
    assert not colored(drawn, GREEN)[5:9, 6:16].any()
