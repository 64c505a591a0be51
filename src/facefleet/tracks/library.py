"""Trackers of Roboflow's package ``trackers``, behind the interface of `Tracker`.

Owns the translation: rows of arrays to its detections and back, its numbers to ours, and when a track has ended, which
the package does not tell. Its wheels ask for OpenCV with a window system, which must not stand beside the headless one
that facefleet needs, so it is installed by hand; see `_HINT`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facefleet.errors import BackendUnavailableError
from facefleet.tracks.options import TrackerOptions
from facefleet.types import F32Array

_HINT = "pip install --no-deps trackers supervision pydeprecate defusedxml, and pip install scipy requests tqdm"
_RATE_FPS = 30.0


class LibraryTracker:
    """One of the package's trackers.

    Args:
        options: What counts as the same face; `method` says which tracker.

    Raises:
        BackendUnavailableError: The package is not installed.
    """

    def __init__(self, options: TrackerOptions) -> None:
        try:
            import supervision
            import trackers
        except ImportError as error:
            raise BackendUnavailableError(f"the tracker {options.method} needs `trackers`", hint=_HINT) from error
        self._detections = supervision.Detections
        self._package = trackers
        self._options = options
        self._inner = self._new()
        self._numbers: dict[int, int] = {}  # its number of a live track -> ours
        self._seen_s: dict[int, float] = {}
        self._missed: dict[int, int] = {}
        self._next = 0

    @property
    def live(self) -> NDArray[np.int64]:
        """As `Tracker.live`."""
        return np.array(sorted(self._numbers.values()), np.int64)

    def update(self, time_s: float, boxes: F32Array, scores: F32Array, *, cut: bool = False) -> NDArray[np.int64]:
        """As `Tracker.update`."""
        if cut:
            self._inner = self._new()
            self._numbers.clear()
        self._end_old(time_s)
        tracks = np.full(len(boxes), -1, np.int64)
        rows = {"row": np.arange(len(boxes))}
        found = self._inner.update(self._detections(xyxy=boxes, confidence=scores, data=rows), timestamp=time_s)
        for key in self._numbers:
            self._missed[key] += 1
        if len(found):
            for row, key in zip(found.data["row"].tolist(), found.tracker_id.tolist(), strict=True):
                if key >= 0:
                    tracks[row] = self._number(key)
                    self._seen_s[key], self._missed[key] = time_s, 0
        return tracks

    def _number(self, key: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += 1
        return self._numbers[key]

    def _end_old(self, time_s: float) -> None:
        options = self._options
        for key in list(self._numbers):
            late = time_s - self._seen_s[key] > options.max_gap_s
            if late and self._missed[key] >= options.max_gap_frames:
                del self._numbers[key], self._seen_s[key], self._missed[key]

    def _new(self) -> Any:  # noqa: ANN401  # the package is untyped here
        options = self._options
        common = {
            "lost_track_buffer": math.ceil(options.max_gap_s * (1 + options.max_gap_frames) * _RATE_FPS),
            "frame_rate": _RATE_FPS,
            "minimum_consecutive_frames": 1,
            "high_conf_det_threshold": options.sure,
        }
        if options.method == "ocsort":
            return self._package.OCSORTTracker(**common)
        common["track_activation_threshold"] = options.sure
        if options.method == "bytetrack":
            return self._package.ByteTrackTracker(**common)
        return self._package.CBIoUTracker(
            **common,
            minimum_iou_threshold_first_assoc=options.overlap,
            buffer_ratio_first=options.enlarge[0],
            buffer_ratio_second=options.enlarge[1],
        )
