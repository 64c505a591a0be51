"""A job with repeated photos, with the feature cache and without, in turns.

    FACEFLEET_DATA=... python benchmarks/cache.py [--photos 400] [--repeated 0.7] [--rounds 3]

Photos of LFW, copied under new names until the wanted share is repeated, in random order; the cache is empty at the
start of each job. The outputs must be the same bytes. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from data_packs import data_folder
from facefleet import Engine, Settings
from facefleet.cache import CachedEngine, open_cache
from facefleet.config import CacheSettings
from facefleet.jobs import run_job
from facefleet.jobs.analyzer import Analyzer
from facefleet.sources import Inputs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--repeated", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--key", default="bytes", choices=("bytes", "pixels"))
    options = parser.parse_args()
    files = sorted((data_folder() / "lfw" / "lfw-deepfunneled").rglob("*.jpg"))
    generator = random.Random(0)
    different = generator.sample(files, round(options.photos * (1 - options.repeated)))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        photos = root / "photos"
        photos.mkdir()
        chosen = different + generator.choices(different, k=options.photos - len(different))
        generator.shuffle(chosen)
        for i, path in enumerate(chosen):
            shutil.copyfile(path, photos / f"{i:06d}.jpg")
        seconds: dict[str, list[float]] = {"without": [], "with": []}
        outputs = set()
        stats = None
        with Engine(Settings()) as engine:
            list(engine.map(files[:50]))

            def job(kind: str, number: int, analyzer: Analyzer) -> None:
                output = root / f"{kind}-{number}.parquet"
                started = time.perf_counter()
                run_job(Inputs([str(photos)]), output, analyzer)
                seconds[kind].append(time.perf_counter() - started)
                outputs.add(hashlib.sha256(output.read_bytes()).hexdigest())

            for number in range(options.rounds):
                job("without", number, engine)
                settings = CacheSettings(path=str(root / f"cache-{number}.sqlite"), key=options.key)
                cache = open_cache(settings)
                assert cache is not None
                cached = CachedEngine(engine, cache, settings, window=engine.settings.batch.max_images)
                job("with", number, cached)
                stats = cached.stats()
                cached.close()
                cache.close()
            description = engine.describe()
    assert len(outputs) == 1, "the outputs differ"
    assert stats is not None
    ratio = statistics.median(seconds["without"]) / statistics.median(seconds["with"])
    report = {
        "photos": options.photos,
        "different": len(different),
        "times_as_fast": round(ratio, 2),
        "images_per_s_without": round(options.photos / statistics.median(seconds["without"]), 1),
        "images_per_s_with": round(options.photos / statistics.median(seconds["with"]), 1),
        "hits": stats.hits,
        "shared": stats.shared,
        "misses": stats.misses,
        "same_output": True,
        "pack": description["pack"],
        "precision": description["precision"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
