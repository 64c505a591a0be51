"""Detections joined into tracks."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from facefleet.errors import BackendUnavailableError
from facefleet.tracks import Tracker, TrackerOptions
from facefleet.tracks.motion import Motion
from facefleet.tracks.tracker import overlaps


def box(x: float, y: float, size: float = 40) -> list[float]:
    return [x, y, x + size, y + size * 1.2]


def run(frames: list[list[list[float]]], *, fps: float = 5, scores: float = 0.9) -> list[list[int]]:
    tracker = Tracker()
    out = []
    for number, boxes in enumerate(frames):
        array = np.array(boxes, np.float32).reshape(-1, 4)
        out.append(tracker.update(number / fps, array, np.full(len(array), scores, np.float32)).tolist())
    return out


def test_two_faces_that_cross_keep_their_tracks() -> None:
    frames = [[box(20 + 25 * n, 100), box(420 - 25 * n, 130)] for n in range(17)]
    assert run(frames) == [[0, 1]] * 17


def test_the_order_of_detections_does_not_matter() -> None:
    generator = np.random.default_rng(4)
    tracker = Tracker()
    for number in range(20):
        boxes = np.array([box(60 * k + 6 * number, 50 + 3 * k) for k in range(6)], np.float32)
        order = generator.permutation(6)
        tracks = tracker.update(number / 5, boxes[order], np.full(6, 0.9, np.float32))
        if number == 0:
            names = dict(zip(order.tolist(), tracks.tolist(), strict=True))
        assert [names[k] for k in order.tolist()] == tracks.tolist()


def test_a_face_that_moves_by_its_own_size_between_frames_is_one_track() -> None:
    assert run([[box(44 * n, 100)] for n in range(10)]) == [[0]] * 10


def test_a_face_hidden_for_a_moment_comes_back_as_itself() -> None:
    frames = [[box(10 * n, 100)] if n not in (5, 6, 7) else [] for n in range(12)]
    assert {track for tracks in run(frames) for track in tracks} == {0}


def test_a_face_away_for_long_is_a_new_track() -> None:
    frames = [[box(10, 100)]] * 3 + [[]] * 10 + [[box(10, 100)]] * 3
    assert run(frames)[-1] == [1]


def test_sparse_sampling_does_not_end_tracks() -> None:
    assert run([[box(100, 100)]] * 5, fps=0.2) == [[0]] * 5


def test_unsure_detections_go_on_with_a_track_and_begin_none() -> None:
    tracker = Tracker(TrackerOptions(sure=0.6))
    one = np.array([box(10, 10)], np.float32)
    two = np.array([box(10, 10), box(300, 300)], np.float32)
    assert tracker.update(0.0, two, np.array([0.9, 0.4], np.float32)).tolist() == [0, -1]
    assert tracker.update(0.2, one, np.array([0.3], np.float32)).tolist() == [0]


def test_a_sure_detection_goes_before_an_unsure_one() -> None:
    tracker = Tracker()
    tracker.update(0.0, np.array([box(100, 100)], np.float32), np.array([0.9], np.float32))
    boxes = np.array([box(100, 100), box(112, 100)], np.float32)
    assert tracker.update(0.2, boxes, np.array([0.4, 0.9], np.float32)).tolist() == [-1, 0]


def test_no_track_goes_on_across_a_cut() -> None:
    tracker = Tracker()
    one, score = np.array([box(10, 10)], np.float32), np.array([0.9], np.float32)
    assert tracker.update(0.0, one, score).tolist() == [0]
    assert tracker.update(0.2, one, score, cut=True).tolist() == [1]
    assert tracker.live.tolist() == [1]


def test_matching_is_the_best_of_all_assignments() -> None:
    generator = np.random.default_rng(11)
    tracker = Tracker(TrackerOptions(overlap=0.001))
    for _ in range(40):
        likeness = generator.uniform(0.01, 1, (4, 5)).astype(np.float32)
        pairs = tracker._pairs(likeness)
        best = max(sum(likeness[r, c] for r, c in enumerate(chosen)) for chosen in itertools.permutations(range(5), 4))
        assert len(pairs) == 4
        assert sum(likeness[row, column] for row, column in pairs) == pytest.approx(best, abs=1e-5)


def test_overlaps() -> None:
    a = np.array([[0, 0, 2, 2]], np.float32)
    b = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [5, 5, 6, 6]], np.float32)
    assert overlaps(a, b)[0].tolist() == pytest.approx([1, 1 / 3, 0])


def test_motion_learns_a_constant_speed() -> None:
    motion = Motion()
    motion.add(np.array([box(0, 0)], np.float32))
    for number in range(1, 30):
        motion.predict(0.1)
        motion.update(np.array([0]), np.array([box(7.0 * number, -3.0 * number)], np.float32))
    assert motion.speed[0, :2] == pytest.approx([70, -30], rel=0.02)
    assert motion.speed[0, 2:] == pytest.approx([0, 0], abs=0.5)
    motion.predict(0.1)
    assert motion.boxes[0] == pytest.approx(box(210, -90), abs=0.5)


def test_motion_agrees_with_the_matrix_form_of_the_filter() -> None:
    """The closed form against F P F' + Q and the gain of the textbook, for one coordinate."""
    motion = Motion()
    motion.add(np.array([box(0, 0)], np.float32))
    p = np.array([[motion.cov[0, 0, 0], 0], [0, motion.cov[0, 0, 2]]])
    x = np.array([motion.position[0, 0], 0.0])
    size = np.sqrt(40 * 48.0)
    for number, dt in enumerate([0.2, 0.05, 1.0, 0.4], 1):
        f = np.array([[1, dt], [0, 1]])
        push = (3.0 * np.sqrt(motion.position[0, 2] * motion.position[0, 3])) ** 2
        q = push * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
        x, p = f @ x, f @ p @ f.T + q
        motion.predict(dt)
        gain = p[:, 0] / (p[0, 0] + (0.05 * size) ** 2)
        measured = np.array([box(9.0 * number, 0)], np.float32)
        x = x + gain * ((measured[0, 0] + measured[0, 2]) / 2 - x[0])
        p = p - np.outer(gain, p[0])
        motion.update(np.array([0]), measured)
        assert [motion.position[0, 0], motion.speed[0, 0]] == pytest.approx(x.tolist())
        assert motion.cov[0, 0].tolist() == pytest.approx([p[0, 0], p[0, 1], p[1, 1]])


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lap", None)
    with pytest.raises(BackendUnavailableError, match=r"facefleet\[video\]"):
        Tracker()
