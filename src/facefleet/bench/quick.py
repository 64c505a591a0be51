"""Throughput of an engine on some photos, from encoded bytes to embeddings, with the time of each stage."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from facefleet.decode import Decoder
from facefleet.errors import ConfigError, FacefleetError
from facefleet.pipeline import Engine
from facefleet.sources import SourceItem
from facefleet.types import EncodedImage, ImageSource

_MAX_BYTES = 512 << 20
_STAGES = ("load", "decode", "detect", "align", "embed")


@dataclass(frozen=True, slots=True)
class QuickReport:
    """What was measured.

    Attributes:
        photos: Different photos.
        failed: Photos that could not be used.
        images: Images analyzed while measuring.
        faces: Faces in them.
        seconds: How long that took.
        stages: Stage -> items, and seconds that threads were busy with it.
    """

    photos: int
    failed: int
    images: int
    faces: int
    seconds: float
    stages: dict[str, tuple[int, float]]

    @property
    def images_per_s(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def faces_per_s(self) -> float:
        """Faces per second."""
        return self.faces / self.seconds

    def as_json(self) -> dict[str, Any]:
        """As JSON's types."""
        rates = {"images_per_s": round(self.images_per_s, 2), "faces_per_s": round(self.faces_per_s, 2)}
        return {**asdict(self), **rates}


def measure(engine: Engine, items: Iterable[SourceItem], *, seconds: float) -> QuickReport:
    """Analyze photos over and over.

    Args:
        engine: Open.
        items: Photos, held in memory while measuring, up to 512 MiB.
        seconds: Least duration; every photo is analyzed at least once more than in the warm-up.

    Raises:
        ConfigError: None of the photos can be used.
    """
    photos, failed = held_photos(items)
    warm = [outcome.ok for outcome in engine.map(photos)]
    photos = [photo for photo, good in zip(photos, warm, strict=True) if good]
    failed += warm.count(False)
    if not photos:
        raise ConfigError("none of the photos can be read", hint="name photos, or folders that hold some")
    before = engine.stage_seconds()
    started = time.perf_counter()

    def repeated() -> Iterator[ImageSource]:
        for index, photo in enumerate(itertools.cycle(photos)):
            if index >= len(photos) and time.perf_counter() - started > seconds:
                return
            yield photo

    images = faces = 0
    for _, outcome in engine.as_ready(repeated()):
        images += 1
        faces += len(outcome.unwrap())
    took = time.perf_counter() - started
    after = engine.stage_seconds()
    stages = {}
    for stage in _STAGES:
        count, busy = after.get(stage, (0, 0.0))
        old_count, old_busy = before.get(stage, (0, 0.0))
        stages[stage] = (count - old_count, busy - old_busy)
    return QuickReport(len(photos), failed, images, faces, took, stages)


def held_photos(items: Iterable[SourceItem]) -> tuple[list[ImageSource], int]:
    """Photos in memory, up to 512 MiB, and how many could not be read."""
    decoder = Decoder()
    photos: list[ImageSource] = []
    failed = size = 0
    for item in items:
        try:
            photo = decoder.read(item.open())
        except (FacefleetError, OSError):
            failed += 1
            continue
        photos.append(photo)
        size += len(photo.data) if isinstance(photo, EncodedImage) else photo.pixels.nbytes
        if size > _MAX_BYTES:
            break
    return photos, failed
