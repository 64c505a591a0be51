"""One measurement of one configuration, in a process of its own: memory is its own, and a crash is only its own.

Owns the child process. Photos are drawn by program where none are given.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import cv2
import numpy as np

from facefleet.bench.drive import Driven, closed_loop, open_loop
from facefleet.bench.load.schedule import poisson
from facefleet.bench.sampler import Sampler
from facefleet.bench.stats import latencies
from facefleet.bench.tune.search import Measured
from facefleet.config import Settings, available_threads
from facefleet.errors import FacefleetError
from facefleet.pipeline import Engine
from facefleet.types import EncodedImage

_HEIGHT, _WIDTH, _FACE_PX = 960, 1280, 200
_PATIENCE_S = 300.0
_MOST_FACES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is measured.

    Attributes:
        settings: Of the engine, its pack included.
        photos: Encoded.
        in_flight: Photos inside at a time.
        seconds: How long.
        rate: Photos a second that come at random times; 0: a closed loop.
    """

    settings: Settings
    photos: tuple[bytes, ...]
    in_flight: int
    seconds: float
    rate: float = 0.0


def drawn_photos(faces: Sequence[int], count: int = 24) -> tuple[bytes, ...]:
    """JPEGs of 1280 x 960 with so many drawn faces each, in turn.

    Args:
        faces: Faces a photo, 0 to 24.
        count: Photos; rounded up to a multiple of the number of `faces`.
    """
    from facefleet.models.drawn import drawn_face

    photos = []
    for number in range(-(-count // len(faces)) * len(faces)):
        random = np.random.default_rng(number)
        ground = random.integers(60, 180, (6, 8, 3)).astype(np.uint8)
        canvas = cv2.resize(ground, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_CUBIC)
        places = random.permutation(_MOST_FACES)[: faces[number % len(faces)]]
        for place in places:
            row, column = divmod(int(place), 6)
            left, top = column * 213 + 6, row * 240 + 20
            canvas[top : top + _FACE_PX, left : left + _FACE_PX] = drawn_face(_FACE_PX, seed=number * 31 + int(place))
        ok, data = cv2.imencode(".jpg", canvas[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
        assert ok
        photos.append(data.tobytes())
    return tuple(photos)


def run_trial(trial: Trial) -> Measured:
    """Measure here, in this process.

    Raises:
        FacefleetError: The engine cannot be opened so.
    """
    settings = replace(trial.settings, runtime=replace(trial.settings.runtime, status=False))
    photos = [EncodedImage(data, f"photo {index}") for index, data in enumerate(trial.photos)]
    device = settings.runtime.devices
    with Engine(settings) as engine:

        def submit(number: int) -> Any:  # noqa: ANN401  # a future
            return engine.submit(photos[number % len(photos)])

        closed_loop(submit, in_flight=trial.in_flight, seconds=0.0, warmup=max(len(photos), trial.in_flight))
        with Sampler(device.partition(",")[0], lambda: [worker.pid for worker in engine.workers()]) as sampler:
            driven = _driven(trial, submit, len(photos))
        held = sum(int(worker.facts.get("rss_bytes") or 0) for worker in engine.workers())
    return _measured(trial, driven, sampler, held, len(device.split(",")))


def _driven(trial: Trial, submit: Any, photos: int) -> Driven:  # noqa: ANN401  # a function
    if not trial.rate:
        return closed_loop(submit, in_flight=trial.in_flight, seconds=trial.seconds, whole=photos)
    return open_loop(submit, poisson(trial.rate, min(max(trial.seconds, 300 / trial.rate), 5 * trial.seconds)))


def _measured(trial: Trial, driven: Driven, sampler: Sampler, held: int, devices: int) -> Measured:
    if not driven.latencies_s:
        return Measured(0.0, 0.0, 0.0, seconds=driven.seconds, error="no photo was answered")
    found = latencies(driven.latencies_s)
    rate = driven.images_per_s
    use = sampler.use
    if trial.rate:
        busy = use.device_busy if use.device_busy is not None else use.cpu / available_threads()
        rate /= min(max(busy, 0.01), 1.0)  # what it could do if nothing were idle
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    memory = own + held if use.device_memory_peak_bytes is None else use.device_memory_peak_bytes * devices
    return Measured(rate, found.p50, found.p99, memory, driven.seconds)


def _child(pipe: Connection, trial: Trial) -> None:
    try:
        pipe.send(run_trial(trial))
    except FacefleetError as error:
        pipe.send(Measured(0.0, 0.0, 0.0, error=error.message))
    finally:
        pipe.close()


def isolated(trial: Trial) -> Measured:
    """Measure in a process of its own; what goes wrong there is in the result."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, trial))
    process.start()
    theirs.close()
    try:
        if not mine.poll(_PATIENCE_S):
            return Measured(0.0, 0.0, 0.0, error=f"no result within {_PATIENCE_S:.0f} s")
        result = mine.recv()
        assert isinstance(result, Measured)
        return result
    except (EOFError, OSError):
        process.join(5)
        return Measured(0.0, 0.0, 0.0, error=f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        mine.close()
