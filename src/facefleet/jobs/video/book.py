"""The tracks of one video: which face belongs to which, the best chips of each, and when each ends.

Owns the tracker and what is known of tracks that have not ended. Used by one thread. Fed with the same frames again,
after an interruption, it comes to the same state: see `TrackBook.fresh`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from facefleet.tracks import Best, BestFaces, TrackerOptions, open_tracker, usefulness
from facefleet.types import Faces, U8Array


@dataclass(slots=True)
class Track:
    """One face through one scene.

    Attributes:
        number: Its number within the video, from 0.
        start_s: Time of the first face.
        end_s: Time of the last one.
        faces: How many were seen.
        score_sum: Sum of their detector scores.
        source: Which stream it belongs to, where there are several.
        best: The best of them.
    """

    number: int
    start_s: float
    best: BestFaces
    end_s: float = 0.0
    faces: int = 0
    score_sum: float = 0.0
    source: str = ""

    @property
    def score(self) -> float:
        """Mean detector score."""
        return self.score_sum / self.faces


@dataclass(slots=True)
class Seen:
    """What became of the faces of a frame.

    Attributes:
        tracks: (n,) int64: track of each, -1 for none.
        ended: Tracks that ended before this frame.
    """

    tracks: NDArray[np.int64]
    ended: list[Track] = field(default_factory=list)


class TrackBook:
    """Joins faces into tracks.

    Args:
        options: What counts as the same face.
        best: How many faces a track are kept for embedding.
        source: What its tracks are marked with.
    """

    def __init__(self, options: TrackerOptions | None = None, *, best: int = 3, source: str = "") -> None:
        self._tracker = open_tracker(options)
        self._best = best
        self._source = source
        self._open: dict[int, Track] = {}
        self._fresh: dict[int, U8Array] = {}
        self.rows = 0

    def add(self, time_s: float, faces: Faces, chip: Callable[[int], U8Array | None], *, cut: bool = False) -> Seen:
        """Take the faces of the next frame.

        Args:
            time_s: Its time.
            faces: Its faces; their chips are not looked at.
            chip: Gives the chip of one of them, or None where it is known not to be among the best.
            cut: Whether another scene begins.
        """
        tracks = self._tracker.update(time_s, faces.boxes, faces.scores, cut=cut)
        ended = self._ended(set(self._tracker.live.tolist()))
        useful = usefulness(faces)
        for index, number in enumerate(tracks.tolist()):
            if number < 0:
                continue
            track = self._open.get(number)
            if track is None:
                track = self._open[number] = Track(number, time_s, BestFaces(self._best), source=self._source)
            track.end_s = time_s
            track.faces += 1
            track.score_sum += float(faces.scores[index])
            pixels = chip(index) if useful[index] > 0 else None
            if pixels is not None:
                track.best.offer(float(useful[index]), time_s, self.rows + index, pixels)
        self.rows += len(faces)
        return Seen(tracks, ended)

    def finish(self) -> list[Track]:
        """End every track."""
        return self._ended(set())

    def fresh(self, first_row: int) -> dict[int, U8Array]:
        """Chips of the faces from `first_row` on that are among the best of their tracks, by row.

        Together with the frames they are all that is needed to come to this state again. Called once for each row.
        """
        chips, self._fresh = self._fresh, {}
        for track in self._open.values():
            chips |= {best.row: best.chip for best in track.best.faces}
        return {row: chip for row, chip in sorted(chips.items()) if row >= first_row}

    def forget_fresh(self) -> None:
        """Let go what `fresh` would give, where nothing is to be resumed."""
        self._fresh.clear()

    def _ended(self, live: set[int]) -> list[Track]:
        ended = [self._open.pop(number) for number in sorted(self._open) if number not in live]
        for track in ended:
            self._fresh |= {best.row: best.chip for best in track.best.faces}
        return ended


def bests(tracks: list[Track]) -> list[Best]:
    """The best faces of tracks, one after the other."""
    return [best for track in tracks for best in track.best.faces]
