"""Detections joined into tracks, frame after frame.

The order of the work is that of ByteTrack (Zhang et al., "ByteTrack: Multi-Object Tracking by Associating Every
Detection Box", ECCV 2022, algorithm 1): sure detections are matched with all tracks first, what is left of the tracks
with the unsure ones; only sure detections begin a track. Likeness is the IoU of boxes that are enlarged on all sides,
little in a first round and more in a second (Yang et al., "Hard to Track Objects with Irregular Motions and Similar
Appearances? Make It Easier by Buffering the Matching Space", WACV 2023, section 3): faces are small, far apart, and
at a few frames a second move by more than their size. Matching is a linear assignment.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError
from facefleet.tracks.motion import Motion
from facefleet.tracks.options import TrackerOptions
from facefleet.types import F32Array

_NONE = -1


class FaceTracker(Protocol):
    """Gives detections the numbers of their tracks, frame after frame."""

    @property
    def live(self) -> NDArray[np.int64]:
        """(n,) int64: numbers of the tracks that have not ended."""

    def update(self, time_s: float, boxes: F32Array, scores: F32Array, *, cut: bool = False) -> NDArray[np.int64]:
        """Take the detections of the next frame; see `Tracker.update`."""


def open_tracker(options: TrackerOptions | None = None) -> FaceTracker:
    """The tracker that the options name.

    Raises:
        BackendUnavailableError: What it needs is not installed.
    """
    chosen = options or TrackerOptions()
    if chosen.method == "builtin":
        return Tracker(chosen)
    from facefleet.tracks.library import LibraryTracker

    return LibraryTracker(chosen)


class Tracker:
    """Gives every detection the number of its track; tracks end after a while unseen, or at a cut.

    Args:
        options: What counts as the same face.
    """

    def __init__(self, options: TrackerOptions | None = None) -> None:
        self._options = options or TrackerOptions()
        self._assign = _assignment()
        self._motion = Motion()
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._seen_s: NDArray[np.float64] = np.empty(0)
        self._missed: NDArray[np.int64] = np.empty(0, np.int64)
        self._now_s: float | None = None
        self._next = 0

    @property
    def live(self) -> NDArray[np.int64]:
        """(n,) int64: numbers of the tracks that have not ended."""
        return self._ids.copy()

    def update(self, time_s: float, boxes: F32Array, scores: F32Array, *, cut: bool = False) -> NDArray[np.int64]:
        """Take the detections of the next frame.

        Args:
            time_s: Its time.
            boxes: (n, 4) float32 x1 y1 x2 y2.
            scores: (n,) float32.
            cut: Whether the scene is another than before: no track goes on.

        Returns:
            (n,) int64: the track of each; -1 where an unsure detection fits none.
        """
        if cut:
            self._keep(np.zeros(len(self._ids), bool))
        if self._now_s is not None:
            self._motion.predict(max(0.0, time_s - self._now_s))
        self._now_s = time_s
        self._end_old(time_s)
        tracks = self._match(boxes, scores)
        self._begin(time_s, boxes, scores, tracks)
        return tracks

    def _match(self, boxes: F32Array, scores: F32Array) -> NDArray[np.int64]:
        tracks = np.full(len(boxes), _NONE, np.int64)
        free = np.ones(len(self._ids), bool)
        sure = scores >= self._options.sure
        predicted = self._motion.boxes
        for wanted in (sure, ~sure):
            for enlarge in self._options.enlarge:
                rows = np.flatnonzero(free)
                columns = np.flatnonzero(wanted & (tracks == _NONE))
                if not len(rows) or not len(columns):
                    continue
                likeness = overlaps(_enlarged(predicted[rows], enlarge), _enlarged(boxes[columns], enlarge))
                pairs = np.array(self._pairs(likeness), np.intp).reshape(-1, 2)
                matched, seen = rows[pairs[:, 0]], columns[pairs[:, 1]]
                free[matched] = False
                tracks[seen] = self._ids[matched]
                self._motion.update(matched, boxes[seen])
                self._seen_s[matched] = self._now_s
                self._missed[matched] = 0
        self._missed += free
        return tracks

    def _pairs(self, likeness: F32Array) -> list[tuple[int, int]]:
        """Rows and columns of the assignment with the highest sum, all at or above the least overlap."""
        cost = (1.0 - likeness).astype(np.float64)
        columns = self._assign(cost, extend_cost=True, cost_limit=1.0 - self._options.overlap)[1]
        return [(row, int(column)) for row, column in enumerate(columns) if column >= 0]

    def _begin(self, time_s: float, boxes: F32Array, scores: F32Array, tracks: NDArray[np.int64]) -> None:
        new = np.flatnonzero((tracks == _NONE) & (scores >= self._options.sure))
        numbers = np.arange(self._next, self._next + len(new))
        self._next += len(new)
        tracks[new] = numbers
        self._motion.add(boxes[new])
        self._ids = np.concatenate([self._ids, numbers])
        self._seen_s = np.concatenate([self._seen_s, np.full(len(new), time_s)])
        self._missed = np.concatenate([self._missed, np.zeros(len(new), np.int64)])

    def _end_old(self, time_s: float) -> None:
        options = self._options
        late = time_s - self._seen_s > options.max_gap_s
        self._keep(~(late & (self._missed >= options.max_gap_frames)))

    def _keep(self, which: NDArray[np.bool_]) -> None:
        self._motion.keep(which)
        self._ids, self._seen_s, self._missed = self._ids[which], self._seen_s[which], self._missed[which]


def overlaps(a: F32Array, b: F32Array) -> F32Array:
    """(n, m) intersection over union of (n, 4) and (m, 4) boxes x1 y1 x2 y2."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    return np.asarray(shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1e-9))


def _enlarged(boxes: F32Array, part: float) -> F32Array:
    grow = (boxes[:, 2:] - boxes[:, :2]) * part
    return np.concatenate([boxes[:, :2] - grow, boxes[:, 2:] + grow], axis=1)


def _assignment() -> Any:  # noqa: ANN401  # lapx is untyped
    try:
        from lap import lapjv
    except ImportError as error:
        raise BackendUnavailableError("lapx is not installed", hint='pip install "facefleet[video]"') from error
    return lapjv
