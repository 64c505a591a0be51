"""What the stages of `gpu_pipeline.py` share: options, what has been found, packs, photos, engines."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_packs import write_pack
from facefleet import Engine, Settings
from facefleet.config import BatchSettings, DetectSettings, RuntimeSettings

SMALL = ("scrfd_500m", "mobilefacenet")


class Bench:
    """Options, and what has been found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work
        self.out: Path = options.out
        self.found: dict[str, Any] = {}

    def keep(self, stage: str, **figures: Any) -> None:  # noqa: ANN401
        """Remember figures, write everything down, and print them."""
        self.found.setdefault(stage, {}).update(figures)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu-pipeline.json").write_text(json.dumps(self.found, indent=1, default=float))
        print(stage, json.dumps(figures, default=float), flush=True)

    def settings(self, pack: Path, **batch: int) -> Settings:
        """For one pack."""
        options = self.options
        runtime = RuntimeSettings(
            backend="torch",
            devices=options.device,
            precision=options.precision,
            compiling=options.compiling,
            status=False,
        )
        return Settings(
            home=str(self.work / "home"), pack=str(pack), runtime=runtime, batch=BatchSettings(**batch),
            detect=DetectSettings(sizes=(options.side,)),
        )  # fmt: skip

    def photos(self) -> list[Path]:
        """Of identity/ and detection/, sorted."""
        root: Path = self.options.photos
        kinds = (".jpg", ".jpeg", ".png")
        found = sorted(
            p for name in ("identity", "detection") for p in (root / name).rglob("*") if p.suffix.lower() in kinds
        )
        return found[:: 40 if self.options.quick else 1]

    def t1(self) -> bytes:
        """The JPEG with six faces."""
        found: Path = next(path for path in self.options.photos.rglob("t1.jpg"))
        return found.read_bytes()

    def small_pack(self) -> Path:
        """The real small networks."""
        return write_pack(self.work, self.options.photos, *SMALL)


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[tuple[Engine, Any]]:
    """An engine, and what it has on the device; without a GPU the same parts on the CPU."""
    if settings.runtime.devices != "cpu":
        engine = Engine(settings)
        with engine:
            scheduler = engine._running.scheduler  # type: ignore[union-attr]
            gc.collect()
            gc.freeze()  # as the commands do
            yield engine, scheduler
        return
    from facefleet.models.load import load_models
    from facefleet.pipeline.device.resident import open_resident
    from facefleet.pipeline.device.scheduler import DeviceScheduler
    from facefleet.pipeline.local import LocalEngine
    from facefleet.pipeline.stages import stages_of

    with contextlib.ExitStack() as stack:
        models = load_models(settings.pack, settings, stack)
        stages = stages_of(models)
        resident = open_resident(models, settings.batch, None)
        scheduler = DeviceScheduler(
            stages, resident, workers=2, max_images=settings.batch.max_images, max_bytes=1 << 30, max_delay_s=0.25
        )
        stack.callback(scheduler.close)
        engine, local = Engine(settings), LocalEngine(settings, settings.pack)
        local._scheduler = scheduler
        engine._running = local
        yield engine, scheduler
