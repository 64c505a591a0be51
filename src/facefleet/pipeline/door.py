"""The way into a pipeline: who has to wait for room, who is sent away, and why nobody comes in any more.

Owns a lock of its own, under which it calls nobody.
"""

from __future__ import annotations

import math
import threading
import time

from facefleet.batching import Admission, Bounds
from facefleet.errors import CancelledError, ClosedError, DeadlineError, FacefleetError, QueueFullError
from facefleet.pipeline.photo import Photo
from facefleet.telemetry import current
from facefleet.telemetry.record import Answers
from facefleet.types import Faces, Outcome


class Door:
    """Lets photos in and out; any number of threads.

    Args:
        max_images: Photos inside at a time.
        max_bytes: Bytes of their sources; one always fits.
        answers: Counts how photos are answered; None inside a worker, whose parent counts.
    """

    def __init__(self, *, max_images: int, max_bytes: int, answers: Answers | None = None) -> None:
        self._answers = answers
        self._admission = Admission(Bounds(max_images, max_bytes))
        self._room = threading.Condition()
        self._shut: FacefleetError | None = None
        self.images = self.faces = 0

    def enter(self, photo: Photo, *, wait: bool) -> None:
        """Let a photo in.

        Raises:
            QueueFullError: There is no room, and `wait` is false.
            FacefleetError: What `shut` was given.
        """
        photo.entry_bytes = photo.source_bytes
        photo.accepted_at = time.perf_counter()
        photo.trace = current()
        with self._room:
            while True:
                if self._shut is not None:
                    raise self._shut
                now = time.monotonic()
                left_s = None if wait or photo.deadline is None else photo.deadline - now
                try:
                    self._admission.enter(now, size_bytes=photo.entry_bytes, client=photo.client, left_s=left_s)
                    return
                except QueueFullError as error:
                    if not wait:
                        if self._answers is not None and photo.counted:
                            self._answers.answered(error)
                        raise
                    self._room.wait()

    def check(self, *, coming: int = 0) -> None:
        """Whether there is a place for a photo that has not come yet; a refusal is counted as one.

        Args:
            coming: Photos that will be here before it.

        Raises:
            QueueFullError: There is none.
        """
        try:
            with self._room:
                self._admission.check(time.monotonic(), coming=coming)
        except QueueFullError as error:
            if self._answers is not None:
                self._answers.answered(error)
            raise

    def leave(self, photo: Photo, outcome: Outcome[Faces]) -> None:
        """Let a photo out with its answer; exactly once for each that came in."""
        error = outcome.error
        served = not isinstance(error, (DeadlineError, ClosedError, CancelledError))
        if self._answers is not None and photo.counted:
            faces = 0 if outcome.value is None else len(outcome.value)
            self._answers.answered(error, faces=faces, seconds=time.perf_counter() - photo.accepted_at)
            self.images += error is None
            self.faces += faces
        with self._room:
            now = time.monotonic()
            self._admission.leave(now, size_bytes=photo.entry_bytes, client=photo.client, served=served)
            self._room.notify_all() if not self._admission.items else self._room.notify()

    def shut(self, why: FacefleetError) -> None:
        """Let nobody in any more; those who wait are told why."""
        with self._room:
            self._shut = self._shut or why
            self._room.notify_all()

    def wait_empty(self, deadline_s: float) -> bool:
        """Wait until nobody is inside; False if somebody is after `deadline_s`."""
        with self._room:
            return self._room.wait_for(
                lambda: not self._admission.items, None if math.isinf(deadline_s) else deadline_s
            )

    @property
    def inside(self) -> int:
        """Photos inside."""
        return self._admission.items
