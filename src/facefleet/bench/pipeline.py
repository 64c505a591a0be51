"""The whole way, from encoded bytes to embeddings: rate, latency, and what each stage takes, waits and batches.

Owns the order: warm-up, then rounds with a fixed number of photos in flight.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from facefleet.backends.timing import PARTS
from facefleet.bench.drive import Driven, closed_loop
from facefleet.bench.quick import held_photos
from facefleet.bench.sampler import Sampler, Use
from facefleet.bench.stats import Repeated, distribution, latencies, quantile
from facefleet.config import Settings
from facefleet.errors import ConfigError
from facefleet.pipeline import Engine
from facefleet.pipeline.observed import StageRun, recorded
from facefleet.sources import SourceItem
from facefleet.types import ImageSource

STAGES = ("load", "decode", "detect", "align", "embed")


@dataclass(slots=True)
class PipelineResult:
    """What was measured.

    Attributes:
        photos: Different photos.
        failed_photos: Photos that could not be used.
        faces_per_image: Of each photo.
        in_flight: Photos inside at a time.
        rounds: A round each.
        runs: What the stages did; empty where workers did it.
        uses: A round each.
        description: Of the engine.
    """

    photos: int
    failed_photos: int
    faces_per_image: list[int]
    in_flight: int
    rounds: list[Driven] = field(default_factory=list)
    runs: list[StageRun] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    description: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        seconds = [each for driven in self.rounds for each in driven.latencies_s]
        faces = Counter(self.faces_per_image)
        return {
            "engine": self.description,
            "photos": self.photos,
            "failed_photos": self.failed_photos,
            "failed": sum(driven.failed for driven in self.rounds),
            "faces_per_image": {str(count): faces[count] for count in sorted(faces)},
            "in_flight": self.in_flight,
            "images_per_s": Repeated(tuple(driven.images_per_s for driven in self.rounds)).as_json(),
            "faces_per_s": Repeated(tuple(driven.faces / driven.seconds for driven in self.rounds)).as_json(),
            "latency": latencies(seconds).as_json(),
            "cdf": distribution(sorted(seconds)),
            "stages": stage_figures(self.runs),
            "uses": [use.as_json() for use in self.uses],
        }


def measure(
    settings: Settings,
    items: Iterable[SourceItem],
    *,
    rounds: int = 3,
    seconds: float = 3.0,
    in_flight: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> PipelineResult:
    """Analyze photos over and over.

    Args:
        settings: Of the engine.
        items: Photos, held in memory while measuring, up to 512 MiB.
        rounds: Measurements.
        seconds: Of each.
        in_flight: Photos inside; 0: as many as the engine takes.
        progress: Is told what happens next.

    Raises:
        ConfigError: None of the photos can be used.
    """
    progress("reading photos")
    photos, failed = held_photos(items)
    with recorded() as recorder, Engine(settings) as engine:
        progress("warm-up")
        outcomes = list(engine.map(photos))
        good = [photo for photo, outcome in zip(photos, outcomes, strict=True) if outcome.ok]
        faces = [len(outcome.unwrap()) for outcome in outcomes if outcome.ok]
        if not good:
            raise ConfigError("none of the photos can be read", hint="name photos, or folders that hold some")
        inside = in_flight or settings.batch.max_images
        result = PipelineResult(len(good), failed + len(photos) - len(good), faces, inside)
        submit = _submitter(engine, good)
        recorder.runs.clear()
        device = "cpu" if settings.runtime.devices == "auto" else settings.runtime.devices
        for number in range(rounds):
            progress(f"round {number + 1}/{rounds}")
            with Sampler(device.partition(",")[0]) as sampler:
                result.rounds.append(closed_loop(submit, in_flight=inside, seconds=seconds))
            result.uses.append(sampler.use)
        result.description = engine.describe()
        result.runs = list(recorder.runs)
    return result


def _submitter(engine: Engine, photos: Sequence[ImageSource]) -> Callable[[int], Any]:
    return lambda number: engine.submit(photos[number % len(photos)])


def stage_figures(runs: Sequence[StageRun]) -> dict[str, Any]:
    """Stage -> what it did; nothing where no run was recorded."""
    found = {}
    for stage in STAGES:
        mine = [run for run in runs if run.stage == stage]
        if not mine:
            continue
        items = sum(len(run.photos) for run in mine)
        waits = sorted(run.start_s - at for run in mine for at in run.queued_s)
        parts = dict.fromkeys(PARTS, 0.0)
        for part in itertools.chain.from_iterable(run.parts for run in mine):
            parts[part.name] += part.seconds
        sizes = Counter(len(run.photos) for run in mine)
        found[stage] = {
            "runs": len(mine),
            "items": items,
            "busy_s": round(sum(run.seconds for run in mine), 4),
            "ms_an_item": round(1000 * sum(run.seconds for run in mine) / items, 4),
            "run": latencies([run.seconds for run in mine]).as_json(),
            "queue_p50_ms": round(1000 * statistics.median(waits), 4) if waits else 0.0,
            "queue_p99_ms": round(1000 * quantile(waits, 99), 4) if waits else 0.0,
            "batches": {str(size): sizes[size] for size in sorted(sizes)} if stage in ("detect", "embed") else {},
            "parts_ms": {
                name: round(1000 * value / len(mine), 4) for name, value in parts.items() if any(parts.values())
            },
        }
    return found
