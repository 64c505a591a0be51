"""The scheduler in this process, with stages that are slow or fail on purpose."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from facefleet.batching import Priority
from facefleet.errors import ClosedError, DeadlineError, DeviceLostError, OutOfMemoryError, QueueFullError
from facefleet.pipeline.photo import DetectorInput, FaceInput, Photo
from facefleet.pipeline.scheduler import Scheduler
from facefleet.types import Faces, Outcome
from tests.conftest import smooth_picture


class SlowStages:
    """Photos without faces; detection waits until it may go on, and may be told to fail."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.go = threading.Event()
        self.go.set()
        self.error: list[Exception] = []
        self.order: list[str] = []
        self.sizes: list[int] = []

    def load(self, photo: Photo) -> int:
        self.order.append(str(photo.client))
        return int(self._real.load(photo))

    def decode(self, photo: Photo) -> list[DetectorInput]:
        return list(self._real.decode(photo))

    def detect(self, batch: Sequence[DetectorInput]) -> None:
        self.sizes.append(len(batch))
        self.go.wait(30)
        if self.error:
            raise self.error.pop()
        self._real.detect(batch)

    def align(self, photo: Photo) -> list[FaceInput]:
        return list(self._real.align(photo))

    def embed(self, batch: Sequence[FaceInput]) -> None:
        self._real.embed(batch)


@pytest.fixture
def stages(engine: Any) -> SlowStages:
    return SlowStages(engine._running.scheduler._stages)


@pytest.fixture
def scheduler(stages: SlowStages) -> Iterator[Scheduler]:
    made = Scheduler(stages, workers=1, detect_batch=4, embed_batch=4, max_images=8, max_bytes=1 << 20)  # type: ignore[arg-type]
    yield made
    stages.go.set()
    made.close()


def photo(name: str = "", **options: Any) -> Photo:
    return Photo(smooth_picture(32, 32), False, client=name or None, **options)


def error(future: Future[Outcome[Faces]]) -> object:
    return future.result(timeout=10).error


def test_a_deadline_is_kept_though_every_worker_is_busy(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    busy = scheduler.submit(photo())
    queued = scheduler.submit(photo(deadline=time.monotonic() + 0.05))
    running = scheduler.submit(photo(deadline=time.monotonic() + 0.1))
    assert isinstance(error(queued), DeadlineError)
    assert isinstance(error(running), DeadlineError)
    assert not busy.done()
    stages.go.set()
    assert busy.result(timeout=10).ok


def test_interactive_photos_go_first(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    futures = [scheduler.submit(photo("first"))]
    while not stages.sizes:
        time.sleep(0.001)
    futures += [scheduler.submit(photo("bulk")) for _ in range(3)]
    futures.append(scheduler.submit(photo("quick", priority=Priority.INTERACTIVE)))
    stages.go.set()
    assert all(future.result(timeout=10).ok for future in futures)
    assert stages.order == ["first", "quick", "bulk", "bulk", "bulk"]


def test_a_full_house_refuses_or_lets_wait(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    futures = [scheduler.submit(photo()) for _ in range(8)]
    with pytest.raises(QueueFullError):
        scheduler.submit(photo(), wait=False)
    waiting: list[Future[Outcome[Faces]]] = []
    thread = threading.Thread(target=lambda: waiting.append(scheduler.submit(photo())))
    thread.start()
    stages.go.set()
    thread.join(timeout=10)
    assert all(future.result(timeout=10).ok for future in futures + waiting)


def test_those_who_wait_for_room_are_told_when_it_closes(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    for _ in range(8):
        scheduler.submit(photo())
    told: list[type[Exception]] = []

    def wait() -> None:
        try:
            scheduler.submit(photo())
        except ClosedError as gone:
            told.append(type(gone))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    threading.Timer(0.2, stages.go.set).start()
    scheduler.close()
    for thread in threads:
        thread.join(timeout=10)
    assert told == [ClosedError] * 3


def test_out_of_memory_halves_and_is_remembered(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    futures = [scheduler.submit(photo())]
    while not stages.sizes:
        time.sleep(0.001)
    stages.error.append(OutOfMemoryError("too large"))
    futures += [scheduler.submit(photo()) for _ in range(7)]
    stages.go.set()
    outcomes = [future.result(timeout=10) for future in futures]
    # The first ran alone, and has nobody to share with; the others fit in halves.
    assert [outcome.ok for outcome in outcomes] == [False] + [True] * 7
    stages.error.append(OutOfMemoryError("too large"))
    stages.go.clear()
    futures = [scheduler.submit(photo()) for _ in range(8)]
    stages.go.set()
    assert sum(future.result(timeout=10).ok for future in futures) >= 7


def test_a_lost_device_is_told_to_everybody(scheduler: Scheduler, stages: SlowStages) -> None:
    stages.go.clear()
    futures = [scheduler.submit(photo()) for _ in range(6)]
    stages.error.append(DeviceLostError("gone"))
    stages.go.set()
    assert all(isinstance(error(future), DeviceLostError) for future in futures)
    with pytest.raises(DeviceLostError):
        scheduler.submit(photo())


def test_drain_waits_for_those_inside(scheduler: Scheduler) -> None:
    futures = [scheduler.submit(photo()) for _ in range(8)]
    scheduler.drain(30.0)
    assert all(future.done() and future.result().ok for future in futures)
    with pytest.raises(ClosedError):
        scheduler.submit(photo())


def test_a_photo_that_expires_while_a_worker_takes_it_up_costs_no_worker(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = scheduler._load

    def expired(taken: Photo) -> None:
        if taken.deadline is not None:
            scheduler._fail(taken, DeadlineError("its deadline passed between its being taken and its being loaded"))
        load(taken)

    monkeypatch.setattr(scheduler, "_load", expired)
    late = scheduler.submit(photo(deadline=time.monotonic() + 3600))
    assert isinstance(error(late), DeadlineError)
    assert scheduler.submit(photo()).result(timeout=10).ok


class LaterClock:
    """The clock an hour and more ahead."""

    perf_counter = staticmethod(time.perf_counter)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 7200


def test_photos_that_expired_between_stages_are_let_go(
    scheduler: Scheduler, stages: SlowStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, read_on = threading.Event(), threading.Event()
    load = stages.load

    def slow(taken: Photo) -> int:
        if taken.client == "slow":
            reading.set()
            read_on.wait(30)
        return load(taken)

    stages.load = slow  # type: ignore[method-assign]
    stages.go.clear()
    scheduler.submit(photo("first"))
    while not stages.sizes:
        time.sleep(0.001)
    late = photo(deadline=time.monotonic() + 3600)
    gone, answer = weakref.ref(late), scheduler.submit(late)
    del late
    after = scheduler.submit(photo("slow"))
    stages.go.set()
    assert reading.wait(10)
    assert len(scheduler._detect) == 1  # the late one, waiting for company
    monkeypatch.setattr("facefleet.pipeline.scheduler.time", LaterClock)
    scheduler._detect.ready(LaterClock.monotonic())  # as a worker asks, before the timer's thread has come to it
    scheduler._expire()
    assert isinstance(error(answer), DeadlineError)
    read_on.set()
    assert after.result(timeout=10).ok
    gc.collect()
    assert gone() is None
