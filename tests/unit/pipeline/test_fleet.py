"""The engine on worker processes: the answers of the engine in this process, whatever ends in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facefleet import Engine, Settings
from facefleet.batching import LinearTime
from facefleet.config import BatchSettings, RuntimeSettings
from facefleet.errors import (
    ClosedError,
    ConfigError,
    CorruptImageError,
    DeadlineError,
    PackNotFoundError,
    QueueFullError,
    SourceError,
)
from facefleet.jobs import Progress, run_job
from facefleet.pipeline.fleet import FleetEngine, stage_costs
from facefleet.sources import Inputs
from facefleet.types import DeferredImage, EncodedImage, Faces
from facefleet.workers import WorkerSpec
from facefleet.workers.placement import Placement
from tests.conftest import encode, smooth_picture

FIRST = min(os.sched_getaffinity(0))


def settings_for(home: Path, **runtime: object) -> Settings:
    return Settings(home=str(home), runtime=RuntimeSettings(**runtime))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def isolated(home: Path) -> Iterator[Engine]:
    """One worker process on one processor."""
    with Engine(settings_for(home, devices=f"cpu:{FIRST}")) as opened:
        yield opened


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def same(one: Faces, other: Faces) -> None:
    for name in ("boxes", "landmarks", "scores", "embeddings", "norms", "status"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name
    for name in ("size_px", "blur", "yaw_deg", "pitch_deg", "roll_deg"):
        assert np.array_equal(getattr(one.quality, name), getattr(other.quality, name), equal_nan=True), name
    assert (one.name, one.width, one.height, one.best_rejected) == (
        other.name,
        other.width,
        other.height,
        other.best_rejected,
    )
    assert (one.chips is None) == (other.chips is None)
    if one.chips is not None:
        assert np.array_equal(one.chips, other.chips)


def test_every_way_in_gives_what_this_process_gives(
    engine: Engine, isolated: Engine, astronaut: np.ndarray, tmp_path: Path
) -> None:
    from PIL import Image

    data = encode(astronaut, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    ways = [path, str(path), data, memoryview(data), EncodedImage(data, "named"), astronaut, Image.open(path)]
    ways += [DeferredImage("later", lambda: data), smooth_picture(90, 70)]
    for way in ways:
        for chips in (False, True):
            same(isolated.analyze(way, chips=chips), engine.analyze(way, chips=chips))  # type: ignore[arg-type]
    assert isolated.fingerprint == engine.fingerprint
    assert isolated.dimension == engine.dimension
    assert isolated.describe()["device"] == f"cpu:{FIRST}"


def test_bad_inputs_keep_their_errors(isolated: Engine, astronaut: np.ndarray, tmp_path: Path) -> None:
    def fail() -> bytes:
        raise OSError("gone")

    items = [astronaut, b"\xff\xd8broken", tmp_path / "missing.jpg", DeferredImage("x", fail), astronaut]
    outcomes = list(isolated.map(items))
    assert [outcome.ok for outcome in outcomes] == [True, False, False, False, True]
    assert isinstance(outcomes[1].error, CorruptImageError)
    assert isinstance(outcomes[2].error, SourceError)
    assert "missing.jpg" in str(outcomes[2].error)
    assert isinstance(outcomes[3].error, SourceError)


def crowd(astronaut: np.ndarray, columns: int) -> np.ndarray:
    return np.concatenate([astronaut[:256, 100:356]] * columns, axis=1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_stage_parallel_gives_the_same_and_survives_a_death(home: Path, engine: Engine, astronaut: np.ndarray) -> None:
    devices = "cpu:" + ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    settings = settings_for(home, devices=devices, placement="stage:1+1")
    pictures = [crowd(astronaut, 1 + i % 4) if i % 5 else smooth_picture(64, 64, seed=i) for i in range(40)]
    expected = [outcome.unwrap() for outcome in engine.map(pictures)]
    with Engine(replace(settings, batch=BatchSettings(embed=2))) as opened:
        assert {worker.stage for worker in opened.workers()} == {"detect", "embed"}
        for number, outcome in enumerate(opened.map(pictures)):
            same(outcome.unwrap(), expected[number])
            if number in (5, 20):
                victim = opened.workers()[number == 5]
                os.kill(victim.pid, signal.SIGKILL)
        wait_for(lambda: [worker.restarts for worker in opened.workers()] == [1, 1])
        assert {worker.error for worker in opened.workers()} == {"exit status -9"}
        running = opened._running
        assert isinstance(running, FleetEngine)
        assert running.fleet._supervisor.shipping is not None
        assert running.fleet._supervisor.shipping.arena.used == 0
        without = opened.submit(pictures[1], embed=False).result().unwrap()
        assert np.isnan(without.embeddings).all()
        assert np.array_equal(without.boxes, expected[1].boxes)


def test_a_killed_worker_loses_no_photo(isolated: Engine, engine: Engine, astronaut: np.ndarray) -> None:
    pictures = [crowd(astronaut, 1 + i % 3) for i in range(60)]
    expected = [engine.analyze(crowd(astronaut, 1 + i)) for i in range(3)]
    before = isolated.workers()[0].restarts
    for number, outcome in enumerate(isolated.map(pictures)):
        same(outcome.unwrap(), expected[number % 3])
        if number == 3:
            os.kill(isolated.workers()[0].pid, signal.SIGKILL)
    wait_for(lambda: isolated.workers()[0].restarts == before + 1)


def test_reload_changes_the_pack_while_photos_go_on(home: Path, astronaut: np.ndarray) -> None:
    settings = settings_for(home, devices=f"cpu:{FIRST}")
    with Engine(settings) as opened:
        stop = threading.Event()
        outcomes = []

        def feed() -> None:
            while not stop.is_set():
                outcomes.append(opened.submit(astronaut).result())

        feeder = threading.Thread(target=feed)
        feeder.start()
        first = opened.fingerprint
        opened.reload(replace(settings, embed=replace(settings.embed, flip=True)))
        assert opened.fingerprint != first
        with pytest.raises(PackNotFoundError):
            opened.reload(pack="nothing-of-that-name")
        flipped = opened.analyze(astronaut)
        stop.set()
        feeder.join()
        assert outcomes
        assert all(outcome.ok for outcome in outcomes)
        assert not np.array_equal(flipped.embeddings, outcomes[0].unwrap().embeddings)


def test_drain_finishes_what_is_inside(home: Path, astronaut: np.ndarray) -> None:
    opened = Engine(settings_for(home, devices=f"cpu:{FIRST}"))
    futures = [opened.submit(astronaut) for _ in range(30)]
    opened.drain()
    assert all(future.result(timeout=1).ok for future in futures)


def test_closing_answers_everybody(home: Path, astronaut: np.ndarray) -> None:
    opened = Engine(settings_for(home, devices=f"cpu:{FIRST}"))
    futures = [opened.submit(astronaut) for _ in range(40)]
    opened.close()
    outcomes = [future.result(timeout=10) for future in futures]
    assert all(outcome.ok or isinstance(outcome.error, ClosedError) for outcome in outcomes)
    assert any(not outcome.ok for outcome in outcomes)


def test_a_full_house_refuses_at_once_and_deadlines_pass(isolated: Engine, astronaut: np.ndarray) -> None:
    futures = []
    with pytest.raises(QueueFullError) as caught:  # noqa: PT012  # the last of many
        for _ in range(500):
            futures.append(isolated.submit(astronaut, wait=False))
    assert caught.value.retry_after_s > 0
    futures[-1].cancel()
    late = isolated.submit(astronaut, timeout_s=0.01)
    assert isinstance(late.result(timeout=60).error, DeadlineError)
    assert all(future.cancelled() or future.result(timeout=60).ok for future in futures)


def test_the_answers_of_many_callers_do_not_mix(isolated: Engine, astronaut: np.ndarray) -> None:
    """Fault 22: 64 threads, each with an answer of its own."""
    pictures = [np.ascontiguousarray(np.pad(astronaut[:300, 80:380], ((k, 0), (2 * k, 0), (0, 0)))) for k in range(8)]
    expected = [isolated.analyze(picture) for picture in pictures]
    wrong: list[int] = []

    def call(number: int) -> None:
        faces = isolated.analyze(pictures[number % 8])
        if not np.array_equal(faces.boxes, expected[number % 8].boxes):
            wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_impossible_placements(home: Path) -> None:
    for runtime in (
        {"devices": f"cpu:{FIRST}", "placement": "stage"},
        {"devices": f"cpu:{FIRST}", "placement": "stage:2+1"},
    ):
        with pytest.raises(ConfigError, match="devices"):
            Engine(settings_for(home, **runtime)).open()


def test_costs_come_from_what_was_done() -> None:
    before = {"load": (10, 1.0), "decode": (10, 1.0), "detect": (10, 1.0), "align": (10, 1.0), "embed": (10, 5.0)}
    now = {"load": (110, 2.0), "decode": (110, 3.0), "detect": (110, 6.0), "align": (110, 3.0), "embed": (410, 13.0)}
    embedding = LinearTime()
    for size in (1, 2, 5, 2) * 40:
        embedding.add(size, 0.010 + 0.002 * size)
    costs = stage_costs(before, now, embedding, 20)
    assert costs is not None
    assert (costs.detect_s, costs.embed_s, costs.faces) == pytest.approx((0.1, 0.0025, 4.0))
    assert stage_costs(now, now, embedding, 20) is None


def test_a_photo_cancelled_in_the_queue_is_not_worked_on(isolated: Engine, astronaut: np.ndarray) -> None:
    futures = [isolated.submit(astronaut) for _ in range(40)]
    time.sleep(0.01)
    dropped = [future.cancel() for future in futures]
    assert any(dropped)
    assert all(future.result().ok for future, gone in zip(futures, dropped, strict=True) if not gone)
    assert len(isolated.analyze(astronaut)) == 1


def test_a_job_survives_the_deaths_of_its_workers(
    home: Path, engine: Engine, astronaut: np.ndarray, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number:03d}.jpg").write_bytes(encode(crowd(astronaut, 1 + number % 3), "JPEG"))
    (folder / "broken.jpg").write_bytes(b"\xff\xd8broken")
    expected = run_job(Inputs([str(folder)]), tmp_path / "here.parquet", engine)
    killed = []

    with Engine(settings_for(home, devices=f"cpu:{FIRST}")) as opened:

        def progress(now: Progress) -> None:
            if now.done in (3, 20):
                os.kill(opened.workers()[0].pid, signal.SIGKILL)
                killed.append(now.done)

        summary = run_job(Inputs([str(folder)]), tmp_path / "there.parquet", opened, progress=progress)
    assert killed == [3, 20]
    assert (summary.ok, summary.failed_permanent, summary.faces) == (50, 1, expected.faces)
    assert (tmp_path / "there.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


class FakeFleet:
    """Remembers what it was told to reload."""

    def __init__(self, engine: FleetEngine) -> None:
        self.engine = engine
        self.reloaded: list[tuple[str, str]] = []
        self.moved = threading.Event()

    def reload(self, specs: list[WorkerSpec]) -> None:
        self.reloaded += [(spec.name, spec.stage) for spec in specs]
        self.moved.set()


def test_devices_move_to_the_stage_that_needs_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(home, devices="cuda:0,1,2,3", placement="stage")
    opened = FleetEngine(settings, "opencv", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], Placement(2, 2))
    fleet = FakeFleet(opened)
    looks = iter(range(1, 1000))
    times = LinearTime()

    def stage_seconds() -> dict[str, tuple[int, float]]:
        images = 100 * next(looks)  # 10 ms a photo, of 20 faces of 2 ms
        return {"align": (images, 0.0), "detect": (images, 0.010 * images)}

    def embed_times() -> LinearTime:
        for size in (8, 16) * 84:
            times.add(size, 0.002 * size)
        return LinearTime(*times.sums())

    monkeypatch.setattr("facefleet.pipeline.fleet._BALANCE_S", 0.005)
    monkeypatch.setattr(opened, "fleet", fleet)
    monkeypatch.setattr(opened, "stage_seconds", stage_seconds)
    monkeypatch.setattr(opened, "_embed_times", embed_times)
    watcher = threading.Thread(target=opened._watch_balance)
    watcher.start()
    assert fleet.moved.wait(10)
    opened._stopping.set()
    watcher.join()
    assert fleet.reloaded == [("cuda:1", "embed")]
    assert opened.placement == Placement(1, 3)
