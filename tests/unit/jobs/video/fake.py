"""An engine that finds colored squares, and a job on it as a process of its own."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from facefleet.errors import FacefleetError, InferenceError
from facefleet.jobs.video import VideoOptions, VideoOutputs, run_video
from facefleet.ops import l2_normalize
from facefleet.sources.video import Sampling
from facefleet.types import Embeddings, Faces, Image, Outcome, Quality
from tests.unit.sources.video.make import COLORS

DIMENSION = 4


def find_squares(image: Image) -> Faces:
    """A face for each color that is in the picture; its chip is of that color, its blur varies with its place."""
    pixels = image.pixels.astype(int)
    boxes, colors = [], []
    for color in COLORS:
        rows, columns = np.nonzero(np.abs(pixels - color).sum(axis=2) < 130)
        if len(rows) > 60:
            boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            colors.append(color)
    n = len(boxes)
    array = np.array(boxes, np.float32).reshape(-1, 4)
    chips = np.empty((n, 112, 112, 3), np.uint8)
    chips[:] = np.array(colors, np.uint8).reshape(n, 1, 1, 3)
    size = np.full(n, 100, np.float32)
    zero = np.zeros(n, np.float32)
    return Faces(
        name=image.name,
        width=image.width,
        height=image.height,
        boxes=array,
        landmarks=np.zeros((n, 5, 2), np.float32),
        scores=np.full(n, 0.9, np.float32),
        embeddings=np.full((n, DIMENSION), np.nan, np.float32),
        norms=np.full(n, np.nan, np.float32),
        status=np.zeros(n, np.uint8),
        quality=Quality(size, 100 + array[:, 0] * 3 % 50, zero, zero, zero),
        chips=chips,
    )


def embed_colors(chips: np.ndarray) -> Embeddings:
    """Mean color, and a constant so that no vector is zero."""
    means = chips.mean(axis=(1, 2)).astype(np.float32) - 128
    unit, norms = l2_normalize(np.concatenate([means, np.full((len(chips), 1), 4, np.float32)], axis=1))
    return Embeddings(unit, norms)


class SquareEngine:
    """Answers from threads of its own.

    Args:
        delay_s: Time that each answer takes.
        failing: Frames, by the milliseconds of their time, that fail.
    """

    fingerprint = "f" * 64

    def __init__(self, *, delay_s: float = 0.0, failing: tuple[int, ...] = ()) -> None:
        self._pool = ThreadPoolExecutor(3)
        self._delay_s = delay_s
        self._failing = failing
        self._lock = threading.Lock()
        self.inside = self.most_inside = 0
        self.names: list[str] = []

    def describe(self) -> dict[str, str]:
        return {"pack": "squares", "threads": "3"}

    def submit(self, image: Image, *, chips: bool = False, embed: bool = True, **_: object) -> Future[Outcome[Faces]]:
        assert chips
        assert not embed
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.names.append(image.name)
        return self._pool.submit(self._answer, image)

    def _answer(self, image: Image) -> Outcome[Faces]:
        time.sleep(self._delay_s)
        try:
            if any(image.name.endswith(f"@{ms / 1000:.3f}s") for ms in self._failing):
                raise InferenceError("this one fails")
            return Outcome(find_squares(image))
        except FacefleetError as error:
            return Outcome(error=error)
        finally:
            with self._lock:
                self.inside -= 1


def main(path: str, output: str, delay_s: str) -> None:
    """A job on its own; it tells on stdout how far it is."""
    result = run_video(
        path,
        Path(output),
        SquareEngine(delay_s=float(delay_s)),
        embed_colors,
        dimension=DIMENSION,
        options=VideoOptions(sampling=Sampling(every=2), commit_frames=7),
        outputs=VideoOutputs(chapters=True, contact=True),
        progress=lambda state: print(state.frames, flush=True),
    )
    print(result.to_json(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
