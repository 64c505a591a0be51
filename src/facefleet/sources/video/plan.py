"""Which packets need not be decoded: those whose frame nobody looks at and no other frame needs.

A decoder that is told to skip frames without references (`AVDISCARD_NONREF`) for a packet drops its frame if no other
is built on it, and decodes it otherwise: the frames that are looked at come out bit by bit the same, for about half
of the work. To know in time which those are, packets are read ahead, and their timestamps put into the order of
display. Pure bookkeeping; one thread.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from facefleet.sources.video.sampling import Sampler, Sampling

AHEAD = 32
"""Packets by which decoding order may differ from display order; H.264 and HEVC allow 16 frames."""

_CODECS = ("h264", "hevc")
_FORMATS = ("mov", "mp4", "matroska", "webm")  # containers in which every packet has its timestamp


def may_skip(sampling: Sampling, codec: str, container: str) -> bool:
    """Whether packets can be left out: the times of frames say which are looked at, and not what they show."""
    sparse = sampling.every > 1 or sampling.fps is not None
    known = codec in _CODECS and any(name in _FORMATS for name in container.split(","))
    return known and sparse and not sampling.keyframes and sampling.scene is None


@dataclass(frozen=True, slots=True)
class Planned:
    """A frame to come.

    Attributes:
        pts: Its timestamp.
        index: Its number; see `VideoFrame.index`.
        wanted: Whether it is looked at.
        state: State of the sampler after it.
    """

    pts: int
    index: int
    wanted: bool
    state: dict[str, Any]


class Plan:
    """What becomes of the frames of packets that were read.

    Args:
        sampling: Which frames are looked at.
        time_s: Time of a timestamp in seconds.
        counts: Whether a frame with this timestamp is within the part that is asked for.
        index: Number of the last frame before that part.
        state: State of the sampler there.
    """

    def __init__(
        self,
        sampling: Sampling,
        time_s: Callable[[int], float],
        counts: Callable[[int], bool],
        index: int,
        state: dict[str, Any] | None,
    ) -> None:
        self._sampling = sampling
        self._time_s = time_s
        self._counts = counts
        self._index, self._first = index, (index, state)
        self._sampler = Sampler(sampling, state)
        self._last: Planned | None = None
        self._heap: list[int] = []
        self._settled_to: int | None = None
        self._coming: deque[Planned] = deque()
        self._wanted: set[int] = set()

    def restart(self) -> None:
        """Packets are read again from before the last frame that was taken."""
        self._heap, self._settled_to = [], None
        self._coming.clear()
        self._wanted.clear()
        self._index, state = self._first if self._last is None else (self._last.index, self._last.state)
        self._sampler = Sampler(self._sampling, state)

    def see(self, pts: int) -> None:
        """A packet was read."""
        heapq.heappush(self._heap, pts)
        while len(self._heap) > AHEAD:
            self._settle(heapq.heappop(self._heap))

    def finish(self) -> None:
        """There are no more packets."""
        while self._heap:
            self._settle(heapq.heappop(self._heap))

    def settled(self, pts: int) -> bool:
        """Whether it is known what becomes of a frame."""
        return self._settled_to is not None and pts <= self._settled_to

    def wants(self, pts: int) -> bool:
        """Whether a frame, settled, is looked at."""
        return pts in self._wanted

    def take(self, pts: int) -> Planned | None:
        """What was planned for a frame that came out of the decoder; None if it does not count."""
        while self._coming and self._coming[0].pts < pts:
            self._wanted.discard(self._coming.popleft().pts)
        if not self._coming or self._coming[0].pts != pts:
            return None
        self._last = self._coming.popleft()
        self._wanted.discard(pts)
        return self._last

    def _settle(self, pts: int) -> None:
        self._settled_to = pts if self._settled_to is None else max(pts, self._settled_to)
        if not self._counts(pts) or (self._last is not None and pts <= self._last.pts):
            return
        self._index += 1
        wanted = self._sampler.due(self._index, self._time_s(pts))
        self._coming.append(Planned(pts, self._index, wanted, self._sampler.state))
        if wanted:
            self._wanted.add(pts)
