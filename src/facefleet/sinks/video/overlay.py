"""Where every face is at any moment: boxes between the frames that were looked at. Pure arrays, safe in any thread."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facefleet.types import F32Array


@dataclass(frozen=True, slots=True)
class Placed:
    """A face at a moment.

    Attributes:
        track: Its track, -1 for none.
        box: (4,) float32 x1 y1 x2 y2.
        held: Whether the moment lies before the first or after the last time it was seen.
    """

    track: int
    box: F32Array
    held: bool


class Overlay:
    """Boxes by time.

    Args:
        times_s: (n,) float64: when each face was seen.
        boxes: (n, 4) float32.
        tracks: (n,) int64: which track it belongs to; -1 stands for itself alone.
        hold_s: How long a face stays before it is seen first and after it is seen last: up to where the next frame
            that was looked at says something.
    """

    def __init__(
        self, times_s: NDArray[np.float64], boxes: F32Array, tracks: NDArray[np.int64], *, hold_s: float
    ) -> None:
        self._hold_s = hold_s
        alone = tracks < 0
        keys = np.where(alone, -1 - np.arange(len(tracks)), tracks)
        order = np.lexsort((times_s, keys))
        edges = np.flatnonzero(np.diff(keys[order])) + 1
        parts = [part for part in np.split(order, edges) if len(part)]
        parts.sort(key=lambda part: float(times_s[part[0]]))
        self._parts = [(int(tracks[part[0]]), times_s[part], boxes[part]) for part in parts]
        self._starts = [float(times[0]) - hold_s for _, times, _ in self._parts]
        self._next = 0
        self._active: list[int] = []

    def at(self, time_s: float) -> list[Placed]:
        """Every face at a moment; moments are asked for in rising order."""
        until = bisect.bisect_right(self._starts, time_s + 1e-9)
        self._active += range(self._next, until)
        self._next = max(self._next, until)
        self._active = [part for part in self._active if self._parts[part][1][-1] + self._hold_s >= time_s - 1e-9]
        return [self._place(*self._parts[part], time_s) for part in self._active]

    def _place(self, track: int, times: NDArray[np.float64], boxes: F32Array, time_s: float) -> Placed:
        right = int(np.searchsorted(times, time_s - 1e-9))
        if right == len(times):
            return Placed(track, boxes[-1], held=True)
        if right == 0 or times[right] <= time_s + 1e-9:
            return Placed(track, boxes[right], held=time_s < times[right] - 1e-9)
        part = (time_s - times[right - 1]) / (times[right] - times[right - 1])
        box = boxes[right - 1] + (boxes[right] - boxes[right - 1]) * np.float32(part)
        return Placed(track, box.astype(np.float32), held=False)
