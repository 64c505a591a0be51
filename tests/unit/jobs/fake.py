"""An engine whose answers follow from the bytes alone, out of order, and a job on it as a process of its own."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from facefleet.config import JobSettings
from facefleet.decode import Decoder
from facefleet.errors import CorruptImageError, FacefleetError, InferenceError
from facefleet.types import EncodedImage, Faces, FaceStatus, ImageSource, Outcome, Quality

DIMENSION = 16


def faces_of(name: str, data: bytes, *, chips: bool = False, count: int | None = None) -> Faces:
    """Up to 5 faces that follow from the bytes; every seventh or so could not be aligned."""
    seed = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    generator = np.random.default_rng(seed)
    n = seed % 6 if count is None else count
    low = generator.uniform(-5, 300, (n, 2)).astype(np.float32)
    boxes = np.concatenate([low, low + generator.uniform(10, 80, (n, 2)).astype(np.float32)], axis=1)
    status = (generator.integers(0, 7, n) == 0).astype(np.uint8) * np.uint8(FaceStatus.ALIGNMENT_FAILED)
    embeddings = generator.normal(size=(n, DIMENSION)).astype(np.float32)
    norms = np.linalg.norm(embeddings, axis=1).astype(np.float32)
    embeddings /= np.maximum(norms, 1e-6)[:, None]
    landmarks = generator.uniform(0, 300, (n, 5, 2)).astype(np.float32)
    embeddings[status != 0], norms[status != 0] = np.nan, np.nan
    measures = [generator.normal(size=n).astype(np.float32) for _ in range(5)]
    measures[1][status != 0] = np.nan
    return Faces(
        name,
        640,
        480,
        boxes,
        landmarks,
        generator.uniform(0.5, 1, n).astype(np.float32),
        embeddings,
        norms,
        status,
        Quality(*measures),
        float(generator.uniform(0, 0.5)),
        generator.integers(0, 256, (n, 112, 112, 3)).astype(np.uint8) if chips else None,
    )


class FakeEngine:
    """Bytes that begin with ``bad`` are corrupt, ``flaky N`` fails N times, ``blank`` has no face.

    Args:
        window: Pictures taken in before the first answer; answers come in random order within it.
        delay_s: Time that each answer takes.
        fingerprint: What it claims to be.
    """

    dimension = DIMENSION

    def __init__(self, *, window: int = 8, delay_s: float = 0.0, fingerprint: str = "f" * 64) -> None:
        self.fingerprint = fingerprint
        self.window = window
        self.delay_s = delay_s
        self.seen: list[str] = []
        self._tries: dict[str, int] = {}
        self._decoder = Decoder()
        self._random = random.Random(7)

    def describe(self) -> dict[str, str]:
        return {"pack": "fake", "license": "none", "threads": "1"}

    def as_ready(self, images: Iterable[ImageSource], *, chips: bool = False) -> Iterator[tuple[int, Outcome[Faces]]]:
        source = enumerate(images)
        held: list[tuple[int, ImageSource]] = []
        while True:
            while len(held) < self.window and (entry := next(source, None)) is not None:
                held.append(entry)
            if not held:
                return
            index, image = held.pop(self._random.randrange(len(held)))
            if self.delay_s:
                time.sleep(self.delay_s)
            try:
                yield index, Outcome(self._analyze(image, chips))
            except FacefleetError as error:
                yield index, Outcome(error=error)

    def _analyze(self, image: ImageSource, chips: bool) -> Faces:
        encoded = self._decoder.read(image)
        assert isinstance(encoded, EncodedImage)
        self.seen.append(encoded.name)
        if encoded.data.startswith(b"bad"):
            raise CorruptImageError(f"{encoded.name}: damaged")
        if encoded.data.startswith(b"flaky"):
            self._tries[encoded.name] = tries = self._tries.get(encoded.name, 0) + 1
            if tries <= int(encoded.data.split()[1]):
                raise InferenceError(f"{encoded.name}: try {tries} failed")
        return faces_of(encoded.name, encoded.data, chips=chips, count=0 if encoded.data.startswith(b"blank") else None)


def main(folder: str, output: str, delay_s: str) -> None:
    """A job on its own; it tells on stdout how far it is."""
    from facefleet.jobs import run_job
    from facefleet.sources import Inputs

    summary = run_job(
        Inputs([folder]),
        Path(output),
        FakeEngine(delay_s=float(delay_s)),
        JobSettings(commit_images=7, retries=1),
        progress=lambda state: print(state.done, flush=True),
    )
    print(summary.to_json(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
