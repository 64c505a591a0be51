"""What the stages of an engine did and when, for timelines: only while somebody records.

Owns the recording. An engine that is opened inside `recorded` tells every stage's work; others run the plain stages.
Only engines in this process can be recorded: workers have processes of their own.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TypeVar

from facefleet.backends.timing import Part, recording
from facefleet.pipeline.photo import DetectorInput, FaceInput, Photo
from facefleet.pipeline.stages import Stages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageRun:
    """One piece of work of one stage.

    Attributes:
        stage: ``load``, ``decode``, ``detect``, ``align`` or ``embed``.
        thread: Name of the thread.
        start_s: By `time.perf_counter`.
        seconds: How long it took.
        photos: Numbers of the photos it was for, in the order in which they came; one an item.
        queued_s: When each item began to wait for the stage, by the same clock; empty where nothing is queued.
        parts: Of the run of the network.
    """

    stage: str
    thread: str
    start_s: float
    seconds: float
    photos: tuple[int, ...]
    queued_s: tuple[float, ...] = ()
    parts: tuple[Part, ...] = ()


class Recorder:
    """Collects what stages did; any thread may tell it."""

    def __init__(self) -> None:
        self.runs: list[StageRun] = []
        self._numbers: weakref.WeakKeyDictionary[Photo, int] = weakref.WeakKeyDictionary()
        self._count = itertools.count(1)
        self._lock = threading.Lock()
        self._clocks = time.perf_counter() - time.monotonic()

    def watch(self, stage: str, photos: Sequence[Photo], queued: Sequence[float], run: Callable[[], T]) -> T:
        """Run something, and note when it ran and for whom."""
        with self._lock:
            numbers = tuple(self._number(photo) for photo in photos)
        started = time.perf_counter()
        with recording() as record:
            try:
                return run()
            finally:
                seconds = time.perf_counter() - started
                waited = tuple(at + self._clocks for at in queued)
                thread = threading.current_thread().name
                self.runs.append(StageRun(stage, thread, started, seconds, numbers, waited, tuple(record.parts)))

    def _number(self, photo: Photo) -> int:
        number = self._numbers.get(photo)
        if number is None:
            number = self._numbers[photo] = next(self._count)
        return number


_LOCK = threading.Lock()
_ACTIVE: Recorder | None = None


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Engines that are opened inside the ``with`` block tell what their stages do."""
    global _ACTIVE
    with _LOCK:
        before, _ACTIVE = _ACTIVE, Recorder()
        recorder = _ACTIVE
    try:
        yield recorder
    finally:
        with _LOCK:
            _ACTIVE = before


def observed(stages: Stages) -> Stages:
    """The stages that tell what they do, where somebody records; else these."""
    recorder = _ACTIVE
    if recorder is None:
        return stages
    values = {field.name: getattr(stages, field.name) for field in fields(Stages)}
    return _Observed(**values, recorder=recorder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed(Stages):
    recorder: Recorder

    def load(self, photo: Photo) -> int:
        return self.recorder.watch("load", [photo], (), lambda: Stages.load(self, photo))

    def decode(self, photo: Photo) -> list[DetectorInput]:
        return self.recorder.watch("decode", [photo], (), lambda: Stages.decode(self, photo))

    def detect(self, batch: Sequence[DetectorInput]) -> None:
        queued = [item.queued_at for item in batch]
        self.recorder.watch("detect", [item.photo for item in batch], queued, lambda: Stages.detect(self, batch))

    def align(self, photo: Photo) -> list[FaceInput]:
        return self.recorder.watch("align", [photo], (), lambda: Stages.align(self, photo))

    def embed(self, batch: Sequence[FaceInput]) -> None:
        queued = [item.queued_at for item in batch]
        self.recorder.watch("embed", [item.photo for item in batch], queued, lambda: Stages.embed(self, batch))
