"""Frames through an engine: as many inside as keep it busy, as few as memory allows, answers in order.

The decoder runs in the thread that iterates and is asked for a frame only when there is room: that is the way
backpressure reaches it. The engine's threads detect meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Iterable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from facefleet.batching import Priority
from facefleet.sources.video import VideoFrame
from facefleet.types import Faces, ImageSource, Outcome

T = TypeVar("T")


class FrameEngine(Protocol):
    """An engine, as videos see it."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that results depend on."""

    def describe(self) -> dict[str, str]:
        """What is in use, for the output's metadata."""

    def submit(
        self,
        image: ImageSource,
        *,
        chips: bool = False,
        embed: bool = True,
        priority: Priority = Priority.INTERACTIVE,
        client: Hashable = None,
        wait: bool = True,
    ) -> Future[Outcome[Faces]]:
        """Take in a picture; waits while there is no room, if `wait`."""


def analyzed(
    frames: Iterable[tuple[VideoFrame, T]], engine: FrameEngine, *, max_frames: int, max_bytes: int
) -> Generator[tuple[VideoFrame, T, Outcome[Faces]], None, None]:
    """Detect the faces of frames and cut their chips; nothing is embedded.

    Args:
        frames: Frames, each with something that goes along.
        engine: Any engine.
        max_frames: Most frames inside at a time.
        max_bytes: Most bytes of pixels inside; one frame always fits.

    Yields:
        Each frame with its outcome, in the order of `frames`.
    """
    inside: deque[tuple[VideoFrame, T, Future[Outcome[Faces]]]] = deque()
    held = 0
    try:
        for frame, along in frames:
            size = frame.image.pixels.nbytes
            while inside and (len(inside) >= max_frames or held + size > max_bytes or inside[0][2].done()):
                first, beside, future = inside.popleft()
                held -= first.image.pixels.nbytes
                yield first, beside, future.result()
            future = engine.submit(frame.image, chips=True, embed=False, priority=Priority.BULK)
            inside.append((frame, along, future))
            held += size
        while inside:
            first, beside, future = inside.popleft()
            yield first, beside, future.result()
    finally:
        for _, _, future in inside:
            future.cancel()
