"""Trackers of the package `trackers` behind our interface; skipped where it is not installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.tracks import METHODS, TrackerOptions, open_tracker
from tests.conftest import skip_without


def frame(*places: float) -> tuple[np.ndarray, np.ndarray]:
    boxes = np.array([[x, 50, x + 40, 98] for x in places], np.float32).reshape(-1, 4)
    return boxes, np.full(len(boxes), 0.9, np.float32)


@pytest.fixture(params=METHODS)
def options(request: pytest.FixtureRequest) -> TrackerOptions:
    if request.param != "builtin":
        try:
            import supervision  # noqa: F401
            import trackers  # noqa: F401
        except ImportError as error:
            skip_without("trackers", f"the package trackers is not installed: {error}")
    return TrackerOptions(method=request.param)


def test_two_faces_keep_their_numbers_in_any_order_of_rows(options: TrackerOptions) -> None:
    tracker = open_tracker(options)
    seen = []
    for number in range(12):
        left, right = 100 + 4.0 * number, 400 - 4.0 * number
        order = (left, right) if number % 2 == 0 else (right, left)
        tracks = tracker.update(number / 10, *frame(*order)).tolist()
        seen.append(tracks if number % 2 == 0 else tracks[::-1])
    assert all(each == seen[1] for each in seen[1:])
    assert sorted(seen[-1]) == sorted(tracker.live.tolist())


def test_a_cut_and_a_long_absence_end_tracks(options: TrackerOptions) -> None:
    tracker = open_tracker(options)
    for number in range(4):
        first = tracker.update(number / 10, *frame(100))[0]
    after_cut = [tracker.update(0.4 + number / 10, *frame(100), cut=number == 0)[0] for number in range(3)][-1]
    assert after_cut not in (first, -1)
    for number in range(30):
        tracker.update(0.7 + number / 10, *frame())
    assert tracker.live.tolist() == []
    again = [tracker.update(3.8 + number / 10, *frame(100))[0] for number in range(3)][-1]
    assert again not in (first, after_cut, -1)


def test_a_short_absence_does_not(options: TrackerOptions) -> None:
    tracker = open_tracker(options)
    for number in range(5):
        first = tracker.update(number / 10, *frame(100))[0]
    for number in range(5, 8):
        assert tracker.update(number / 10, *frame()).tolist() == []
        assert tracker.live.tolist() == [first]
    assert tracker.update(0.8, *frame(100)).tolist() == [first]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackers", None)
    with pytest.raises(BackendUnavailableError, match="--no-deps trackers"):
        open_tracker(TrackerOptions(method="bytetrack"))
    with pytest.raises(ConfigError, match="bytetrack"):
        TrackerOptions(method="deepsort")  # type: ignore[arg-type]
