"""A fixed number of threads work all stages, the most advanced work first, so that memory drains before it fills.

Owns the threads, the queues between stages, the fan-in of faces and the memory budget. Refuses to know what a stage
does. All shared state is guarded by one condition; stages run outside it.

A worker takes, in this order: a batch that is due (embedding before detection), a photo to decode if the memory
budget allows, a batch that is not full. So batches fill while photos are waiting, and nothing waits for company
that is not coming.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from facefleet.batching import Batcher, BatchPolicy
from facefleet.errors import ClosedError, FacefleetError, InternalError
from facefleet.pipeline.photo import DetectorInput, FaceInput, Photo
from facefleet.pipeline.stages import Stages, assemble
from facefleet.types import Faces, Outcome

T = TypeVar("T", DetectorInput, FaceInput)
Task = Callable[[], None]

_log = logging.getLogger(__name__)
_MAX_DELAY_S = 0.25  # the longest a part-filled batch waits while there are photos to decode


class Scheduler:
    """Runs photos through the stages.

    Args:
        stages: Opened parts.
        workers: Threads.
        detect_batch: Most inputs a detector batch.
        embed_batch: Most faces an embedder batch.
        max_images: Photos inside at a time; `submit` waits beyond that.
        max_bytes: Budget for encoded and decoded photos; one always fits.
    """

    def __init__(
        self, stages: Stages, *, workers: int, detect_batch: int, embed_batch: int, max_images: int, max_bytes: int
    ) -> None:
        self._stages = stages
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._new: deque[Photo] = deque()
        self._loaded: deque[Photo] = deque()
        self._detect: Batcher[DetectorInput] = Batcher(BatchPolicy(detect_batch, _MAX_DELAY_S))
        self._embed: Batcher[FaceInput] = Batcher(BatchPolicy(embed_batch, _MAX_DELAY_S))
        self._held_bytes = 0
        self._idle = 0
        self._closed = False
        self._inside: set[Photo] = set()
        self._slots = threading.BoundedSemaphore(max_images)
        self._seconds: dict[str, list[float]] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"facefleet-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, photo: Photo) -> Future[Outcome[Faces]]:
        """Accept a photo; waits while `max_images` are inside.

        Returns:
            A future that always gets an outcome, never an exception; cancelling it drops the photo if no stage has
            taken it up yet.

        Raises:
            ClosedError: The scheduler is closed.
        """
        self._slots.acquire()
        with self._changed:
            if self._closed:
                self._slots.release()
                raise ClosedError("the engine is closed")
            self._inside.add(photo)
            self._new.append(photo)
            self._changed.notify()
        return photo.future

    def close(self) -> None:
        """Stop: work in progress ends, photos still inside get a `ClosedError`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for photo in tuple(self._inside):
            self._answer(photo, Outcome(error=ClosedError("the engine was closed before this photo was finished")))

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """For each stage: items done, and seconds that workers were busy with it."""
        with self._changed:
            return {stage: (int(count), seconds) for stage, (count, seconds) in sorted(self._seconds.items())}

    def _work(self) -> None:
        while True:
            with self._changed:
                task = self._next()
                while task is None and not self._closed:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    task = self._next()
                if self._closed or task is None:
                    return
            task()

    def _next(self) -> Task | None:
        """The next piece of work; called with the lock held."""
        now = time.monotonic()
        if self._embed.due(now):
            return self._embed_task(self._embed.take(now))
        if self._detect.due(now):
            return self._detect_task(self._detect.take(now))
        if self._loaded and (not self._held_bytes or self._held_bytes + self._loaded[0].held_bytes <= self._max_bytes):
            photo = self._loaded.popleft()
            self._held_bytes += photo.held_bytes
            return lambda: self._decode(photo)
        if self._new and not self._loaded:
            photo = self._new.popleft()
            return lambda: self._load(photo)
        if len(self._detect):
            return self._detect_task(self._detect.take(now, at_most=self._share(len(self._detect))))
        if len(self._embed):
            return self._embed_task(self._embed.take(now, at_most=self._share(len(self._embed))))
        return None

    def _share(self, pending: int) -> int:
        """A part-filled batch is divided among the workers that have nothing else to do."""
        return -(-pending // (self._idle + 1))

    def _detect_task(self, batch: Sequence[DetectorInput]) -> Task:
        return lambda: self._detect_batch(batch)

    def _embed_task(self, batch: Sequence[FaceInput]) -> Task:
        return lambda: self._embed_batch(batch)

    def _load(self, photo: Photo) -> None:
        if not photo.future.set_running_or_notify_cancel():
            self._leave(photo)
            return
        started = time.perf_counter()
        try:
            photo.held_bytes = self._stages.load(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            self._loaded.append(photo)
            self._count("load", 1, started)
            self._changed.notify()

    def _decode(self, photo: Photo) -> None:
        started = time.perf_counter()
        try:
            inputs = self._stages.decode(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            photo.awaiting_inputs = len(inputs)
            now = time.monotonic()
            for item in inputs:
                self._detect.add(item, shape=item.pixels.shape, now=now)
            self._count("decode", 1, started)
            self._changed.notify()

    def _detect_batch(self, batch: Sequence[DetectorInput]) -> None:
        started = time.perf_counter()
        self._each_or_alone(self._stages.detect, batch)
        complete = []
        with self._changed:
            self._count("detect", len(batch), started)
            for item in batch:
                item.photo.awaiting_inputs -= 1
                if not item.photo.awaiting_inputs and item.photo in self._inside:
                    complete.append(item.photo)
        for photo in complete:
            self._align(photo)

    def _align(self, photo: Photo) -> None:
        started = time.perf_counter()
        try:
            faces = self._stages.align(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            self._held_bytes -= photo.held_bytes
            photo.held_bytes = 0
            photo.awaiting_faces = len(faces)
            now = time.monotonic()
            for face in faces:
                self._embed.add(face, shape=None, now=now)
            self._count("align", 1, started)
            self._changed.notify_all()
        if not faces:
            self._finish(photo)

    def _embed_batch(self, batch: Sequence[FaceInput]) -> None:
        started = time.perf_counter()
        self._each_or_alone(self._stages.embed, batch)
        complete = []
        with self._changed:
            self._count("embed", len(batch), started)
            for item in batch:
                item.photo.awaiting_faces -= 1
                if not item.photo.awaiting_faces and item.photo in self._inside:
                    complete.append(item.photo)
        for photo in complete:
            self._finish(photo)

    def _each_or_alone(self, stage: Callable[[Sequence[T]], None], batch: Sequence[T]) -> None:
        """Run a batch; if it fails, run every item alone, so that only what is at fault fails."""
        try:
            stage(batch)
            return
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch[0].photo, error)
                return
            _log.warning("a batch of %d failed and is run item by item: %s", len(batch), error)
        for item in batch:
            if item.photo in self._inside:
                try:
                    stage([item])
                except Exception as error:
                    self._fail(item.photo, error)

    def _finish(self, photo: Photo) -> None:
        try:
            self._answer(photo, Outcome(assemble(photo)))
        except Exception as error:
            self._fail(photo, error)

    def _fail(self, photo: Photo, error: Exception) -> None:
        if not isinstance(error, (FacefleetError, InternalError)):
            _log.error("unexpected error", exc_info=error)
            failure = InternalError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            error = failure
        self._answer(photo, Outcome(error=error))

    def _answer(self, photo: Photo, outcome: Outcome[Faces]) -> None:
        """Give a photo its one answer."""
        future = photo.future
        waited_for = self._leave(photo) and not future.done()
        if waited_for and (future.running() or future.set_running_or_notify_cancel()):
            future.set_result(outcome)

    def _leave(self, photo: Photo) -> bool:
        """Take a photo out and free what it holds; False if it has left already."""
        with self._changed:
            if photo not in self._inside:
                return False
            self._inside.remove(photo)
            self._held_bytes -= photo.held_bytes if photo not in self._loaded else 0
            photo.held_bytes = 0
            photo.loaded = photo.image = None
            self._changed.notify()
        self._slots.release()
        return True

    def _count(self, stage: str, items: int, started: float) -> None:
        entry = self._seconds.setdefault(stage, [0, 0.0])
        entry[0] += items
        entry[1] += time.perf_counter() - started
