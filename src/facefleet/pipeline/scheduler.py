"""A fixed number of threads work all stages, the most advanced work first, so that memory drains before it fills.

Owns the threads, the queues between stages, the fan-in of faces and the memory budget. Refuses to know what a stage
does. All shared state is guarded by one lock; stages run outside it.

A worker takes, in this order: a batch that is full or late (embedding before detection), a photo to decode if the
memory budget allows, a batch that is not full. So batches fill while photos are waiting, and nothing waits for
company that is not coming. A thread of its own answers photos whose deadline has passed, so that they do not wait for
a worker; it exists only once a photo with a deadline has come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from facefleet.batching import Batcher, BatchPolicy, LatencyCurve, SizeLimit, run_batch
from facefleet.errors import CancelledError, ClosedError, DeadlineError, DeviceLostError, FacefleetError, InternalError
from facefleet.pipeline.adapting import Adapter
from facefleet.pipeline.deadlines import Deadlines
from facefleet.pipeline.door import Door
from facefleet.pipeline.photo import DetectorInput, FaceInput, Photo
from facefleet.pipeline.stages import Stages, assemble
from facefleet.telemetry import InferenceLog, span
from facefleet.telemetry.record import STAGES, Answers
from facefleet.types import FaceChips, Faces, Outcome

T = TypeVar("T", DetectorInput, FaceInput)
Task = Callable[[], None]

_log = logging.getLogger(__name__)


class Scheduler:
    """Runs photos through the stages.

    Args:
        stages: Opened parts.
        workers: Threads.
        detect_batch: Most inputs a detector batch.
        embed_batch: Most faces an embedder batch.
        max_images: Photos inside at a time; `submit` waits beyond that.
        max_bytes: Budget for encoded and decoded photos; one always fits.
        max_delay_s: The longest a part-filled batch waits while there are photos to decode.
        answers: Counts how photos are answered; None inside a worker, whose parent counts.
        target_s: 99 of 100 photos are to be answered in so many seconds; None: batches stay as they are.
        curves: Service times of the stages, for a target.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        workers: int,
        detect_batch: int,
        embed_batch: int,
        max_images: int,
        max_bytes: int,
        max_delay_s: float = 0.25,
        answers: Answers | None = None,
        target_s: float | None = None,
        curves: Mapping[str, LatencyCurve] | None = None,
    ) -> None:
        self._stages = stages
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.door = Door(max_images=max_images, max_bytes=max_bytes, answers=answers)
        self._new: Batcher[Photo] = Batcher(BatchPolicy(1, 0.0))
        self._loaded: deque[Photo] = deque()
        self._detect: Batcher[DetectorInput] = Batcher(BatchPolicy(detect_batch, max_delay_s))
        self._embed: Batcher[FaceInput] = Batcher(BatchPolicy(embed_batch, max_delay_s))
        self._limits = {"detect": SizeLimit(detect_batch), "embed": SizeLimit(embed_batch)}
        batchers: dict[str, Batcher[Any]] = {"detect": self._detect, "embed": self._embed}
        self._adapters = {
            stage: Adapter(batchers[stage], curve, target_s / 2, workers)
            for stage, curve in (curves or {}).items()
            if target_s is not None
        }
        self._held_bytes = 0
        self._idle = 0
        self._closed = False
        self._inside: set[Photo] = set()
        self.batches = 0
        self._seconds: dict[str, list[float]] = {}
        self._inference = InferenceLog()
        self._timer = Deadlines(self._expire)
        self._threads = [
            threading.Thread(target=self._work, name=f"facefleet-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, photo: Photo, *, wait: bool = True) -> Future[Outcome[Faces]]:
        """Accept a photo.

        Args:
            photo: A new one.
            wait: Whether to wait for room; else a full house refuses it at once.

        Returns:
            A future that always gets an outcome, never an exception; cancelling it drops the photo if no stage has
            taken it up yet.

        Raises:
            QueueFullError: There is no room and `wait` is false.
            ClosedError: The scheduler is closed.
            DeviceLostError: The device is gone; a new engine may have it again.
        """
        self.door.enter(photo, wait=wait)
        with self._changed:
            closed = self._closed
            if not closed:
                self._inside.add(photo)
                now = time.monotonic()
                photo.ticket = self._new.add(photo, now=now, priority=photo.priority, deadline=photo.deadline)
            self._changed.notify()
        if closed:
            error = ClosedError("the engine is closed")
            self.door.leave(photo, Outcome(error=error))
            raise error
        if photo.deadline is not None:
            self._timer.set(photo.deadline)
        return photo.future

    def close(self) -> None:
        """Stop: work in progress ends, photos still inside get a `ClosedError`."""
        self.door.shut(ClosedError("the engine is closed"))
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._timer.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for photo in tuple(self._inside):
            self._answer(photo, Outcome(error=ClosedError("the engine was closed before this photo was finished")))

    def drain(self, deadline_s: float) -> None:
        """Let nobody in any more, and wait until everybody inside has an answer, or until the deadline."""
        self.door.shut(ClosedError("the engine is closing"))
        self.door.wait_empty(deadline_s)

    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """For each stage: items done, and seconds that workers were busy with it."""
        with self._changed:
            return {stage: (int(count), seconds) for stage, (count, seconds) in sorted(self._seconds.items())}

    def queues(self) -> dict[str, int]:
        """How many items wait before each stage; shows it in the metrics too."""
        with self._changed:
            now = time.monotonic()
            waiting = {"decode": len(self._new) + len(self._loaded)}
            STAGES["decode"].queue(waiting["decode"], self._new.age(now))
            for stage, batcher in (("detect", self._detect), ("embed", self._embed)):
                waiting[stage] = len(batcher)
                STAGES[stage].queue(len(batcher), batcher.age(now))
                STAGES[stage].limit(batcher.policy.max_batch)
            return waiting

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
        if faces := self._embed.take(now, expecting=True):
            return self._embed_task(faces, now)
        if inputs := self._detect.take(now, expecting=True):
            return self._detect_task(inputs, now)
        if self._loaded and (not self._held_bytes or self._held_bytes + self._loaded[0].held_bytes <= self._max_bytes):
            photo = self._loaded.popleft()
            photo.counted_bytes = photo.held_bytes
            self._held_bytes += photo.counted_bytes
            return lambda: self._decode(photo)
        if not self._loaded and (photos := self._new.take(now)):
            return lambda: self._load(photos[0])
        if inputs := self._detect.take(now, at_most=self._share(len(self._detect))):
            return self._detect_task(inputs, now)
        if faces := self._embed.take(now, at_most=self._share(len(self._embed))):
            return self._embed_task(faces, now)
        return None

    def _share(self, pending: int) -> int:
        """A part-filled batch is divided among the workers that have nothing else to do."""
        return -(-pending // (self._idle + 1)) or 1

    def _detect_task(self, batch: Sequence[DetectorInput], now: float) -> Task:
        for item in batch:
            STAGES["detect"].waited(now - item.queued_at)
        return lambda: self._detect_batch(batch)

    def _embed_task(self, batch: Sequence[FaceInput], now: float) -> Task:
        for item in batch:
            STAGES["embed"].waited(now - item.queued_at)
        return lambda: self._embed_batch(batch)

    def _load(self, photo: Photo) -> None:
        with self._changed:
            if photo not in self._inside:
                return  # answered since it was taken, e.g. because its deadline passed
            wanted = photo.future.set_running_or_notify_cancel()
        if not wanted:
            self._leave(photo, Outcome(error=CancelledError("taken back")))
            return
        if isinstance(photo.source, FaceChips):
            self._align(photo)
            return
        started = time.perf_counter()
        try:
            with span("facefleet.load", photo.trace):
                photo.held_bytes = self._stages.load(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            if photo in self._inside:
                self._loaded.append(photo)
            self._count("load", started)
            self._changed.notify()

    def _decode(self, photo: Photo) -> None:
        started = time.perf_counter()
        try:
            with span("facefleet.decode", photo.trace):
                inputs = self._stages.decode(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            if photo in self._inside:
                photo.awaiting_inputs = len(inputs)
                now = time.monotonic()
                if "detect" in self._adapters:
                    self._adapters["detect"].arrived(len(inputs), now)
                for item in inputs:
                    item.queued_at = now
                    shape = item.pixels.shape
                    self._detect.add(item, shape=shape, now=now, priority=photo.priority, deadline=photo.deadline)
            self._count("decode", started)
            self._changed.notify()

    def _detect_batch(self, batch: Sequence[DetectorInput]) -> None:
        started = time.perf_counter()
        self._run("detect", self._stages.detect, batch)
        complete = []
        with self._changed:
            self._count("detect", started, len(batch), [item.queued_at for item in batch])
            for item in batch:
                item.photo.awaiting_inputs -= 1
                if not item.photo.awaiting_inputs and item.photo in self._inside:
                    complete.append(item.photo)
        for photo in complete:
            self._align(photo)

    def _align(self, photo: Photo) -> None:
        started = time.perf_counter()
        try:
            with span("facefleet.align", photo.trace):
                faces = self._stages.align(photo)
        except Exception as error:
            self._fail(photo, error)
            return
        with self._changed:
            inside = photo in self._inside
            if inside:
                self._held_bytes -= photo.counted_bytes
                photo.counted_bytes = 0
                photo.awaiting_faces = len(faces)
                now = time.monotonic()
                if faces and "embed" in self._adapters:
                    self._adapters["embed"].arrived(len(faces), now)
                for face in faces:
                    face.queued_at = now
                    self._embed.add(face, now=now, priority=photo.priority, deadline=photo.deadline)
            self._count("align", started)
            self._changed.notify_all()
        if inside and not faces:
            self._finish(photo)

    def _embed_batch(self, batch: Sequence[FaceInput]) -> None:
        started = time.perf_counter()
        self._run("embed", self._stages.embed, batch)
        complete = []
        with self._changed:
            self._count("embed", started, len(batch), [item.queued_at for item in batch])
            for item in batch:
                item.photo.awaiting_faces -= 1
                if not item.photo.awaiting_faces and item.photo in self._inside:
                    complete.append(item.photo)
        for photo in complete:
            self._finish(photo)

    def _run(self, stage: str, run: Callable[[Sequence[T]], None], batch: Sequence[T]) -> None:
        """Run a batch of a stage; photos that have their answer already are left out."""

        def still_wanted(items: Sequence[T]) -> None:
            if wanted := [item for item in items if item.photo in self._inside]:
                run(wanted)

        try:
            with span(f"facefleet.{stage}", batch=len(batch)):
                run_batch(still_wanted, batch, self._limits[stage], lambda item, error: self._fail(item.photo, error))
        except DeviceLostError as error:
            self._give_up(error)

    def _give_up(self, error: DeviceLostError) -> None:
        """The device is gone: everybody inside is told, and nobody comes in any more."""
        _log.error("the device is lost: %s", error)
        self.door.shut(error)
        for photo in tuple(self._inside):
            self._fail(photo, error)

    def _finish(self, photo: Photo) -> None:
        try:
            self._answer(photo, Outcome(assemble(photo)))
        except Exception as error:
            self._fail(photo, error)

    def _fail(self, photo: Photo, error: Exception) -> None:
        if photo not in self._inside:
            return  # it has its answer; what a stage found missing afterwards is no news
        if not isinstance(error, (FacefleetError, InternalError)):
            _log.error("unexpected error", exc_info=error)
            failure = InternalError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            error = failure
        self._answer(photo, Outcome(error=error))

    def _expire(self) -> None:
        """Answer every photo whose deadline has passed, wherever it waits."""
        now = time.monotonic()
        with self._changed:
            for batcher in (self._new, self._detect, self._embed):
                batcher.expire(now)  # it would keep what it gave up for somebody to ask; all of that is inside
            late = [photo for photo in self._inside if photo.deadline is not None and photo.deadline <= now]
        for photo in late:
            self._fail(photo, DeadlineError("the deadline passed before the photo was finished"))

    def _answer(self, photo: Photo, outcome: Outcome[Faces]) -> None:
        """Give a photo its one answer."""
        future = photo.future
        waited_for = self._leave(photo, outcome) and not future.done()
        if waited_for and (future.running() or future.set_running_or_notify_cancel()):
            future.set_result(outcome)

    def _leave(self, photo: Photo, outcome: Outcome[Faces]) -> bool:
        """Take a photo out and free what it holds; False if it has left already."""
        with self._changed:
            if photo not in self._inside:
                return False
            self._inside.remove(photo)
            if photo.ticket is not None:
                self._new.cancel(photo.ticket)
                photo.ticket = None  # each holds the other: the bytes would wait for the collector
            if photo in self._loaded:
                self._loaded.remove(photo)
            self._held_bytes -= photo.counted_bytes
            photo.counted_bytes = 0
            photo.loaded = photo.image = None
            self._changed.notify()
        self.door.leave(photo, outcome)
        return True

    def _count(self, stage: str, started: float, batch: int | None = None, queued_at: Sequence[float] = ()) -> None:
        """Stage seconds and metrics of an item, or of a batch."""
        seconds = time.perf_counter() - started
        entry = self._seconds.setdefault(stage, [0, 0.0])
        entry[0] += batch or 1
        entry[1] += seconds
        self.batches += stage == "detect"
        if batch is None:
            STAGES[stage].took(seconds)
        else:
            STAGES[stage].batch(batch, batch, seconds)
            self._inference.batch(batch, seconds, stage=stage)
            if stage in self._adapters:
                self._adapters[stage].ran(queued_at, seconds, time.monotonic())
