"""Streams of 1080p at 25 frames a second on one NVIDIA GPU: NVDEC decodes every frame, every 5th is analyzed.

    python benchmarks/video_gpu.py --work work --photos DATA --models DATA/models --streams 32,64,128 --engine ...

Stages, each alone or `all`: ``agree``, frames and times of NVDEC against those of FFmpeg on the CPU; ``decode``, what
so many readers at a time decode, nothing analyzed; ``streams``, so many streams at the pace of their clock, every 5th
frame detected (SCRFD-2.5g at 640) and all its faces embedded (R50 of random weights, fp16). A stream is kept up with
if, in the last quarter of the time, no frame is taken up later than the next one is due. The clip is looped, packet by
packet and not encoded again. ``--device cpu`` tries the script itself without a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from facefleet import Engine
from facefleet.sources.video import Sampling, VideoFile
from gpu_bench import Bench, opened
from gpu_peers import r50_pack, use_engine
from gpu_timing import used_bytes
from vs_opencv_video import looped

RATE_FPS, EVERY = 25, 5


def decoder(bench: Bench) -> str:
    return "cpu" if bench.options.device == "cpu" else str(bench.options.device)


def clip(bench: Bench, times: int) -> Path:
    """The 1080p clip so often in a row."""
    target: Path = bench.work / f"clip-{times}.mkv"
    if not target.is_file():
        looped(next(bench.options.photos.rglob(bench.options.clip)), target, times)
    return target


def agree(bench: Bench) -> None:
    """The clip through both decoders: times must be equal, pixels may differ by rounding."""
    path = clip(bench, 1)
    with VideoFile(path) as want, VideoFile(path, decoder=decoder(bench)) as got:
        pairs = list(itertools.islice(itertools.zip_longest(want, got), 200))
    lost = sum(a is None or b is None for a, b in pairs)
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    apart = [np.abs(a.image.pixels.astype(int) - b.image.pixels) for a, b in both]
    bench.keep(
        "agree",
        frames=len(both),
        lost=lost,
        times_apart=sum(a.time_s != b.time_s for a, b in both),
        grey_levels_at_most=int(max(d.max() for d in apart)),
        share_differing=float(np.mean([(d > 0).mean() for d in apart])),
    )


def decode(bench: Bench) -> None:
    """Frames a second that threads decode, as fast as they can, of which every 5th becomes a picture."""
    path = clip(bench, 8)
    for count in bench.options.readers:
        stop = threading.Event()
        given = [0] * count

        def read(place: int, given: list[int] = given, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                with VideoFile(path, Sampling(every=EVERY), decoder=decoder(bench), threads=1) as video:
                    for _ in video:
                        given[place] += 1
                        if stop.is_set():
                            break

        threads = [threading.Thread(target=read, args=(place,)) for place in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(2.0)
        first, started, used = sum(given), time.perf_counter(), time.process_time()
        time.sleep(bench.options.seconds)
        rate = EVERY * (sum(given) - first) / (time.perf_counter() - started)
        busy = (time.process_time() - used) / (time.perf_counter() - started)
        stop.set()
        for thread in threads:
            thread.join()
        bench.keep(
            "decode", **{str(count): {"frames_per_s": rate, "processors_busy": busy, "device_bytes": used_bytes()}}
        )


class Stream(threading.Thread):
    """One camera: a frame is taken up when its time has come, and given to the engine."""

    def __init__(self, engine: Engine, path: Path, name: str, begin: float, stop: float) -> None:
        super().__init__(daemon=True)
        self._engine, self._path, self._decoder = engine, path, name
        self.begin, self._stop_at = begin, stop
        self.late: list[tuple[float, float]] = []  # when it was due, and how much later it was taken up
        self.delays: list[tuple[float, float]] = []  # when it was due, and how long until its faces were there
        self.faces = self.errors = 0
        self.futures: list[Any] = []

    def run(self) -> None:
        """Until the stop."""
        with VideoFile(self._path, Sampling(every=EVERY), decoder=self._decoder, threads=1) as video:
            for frame in video:
                due = self.begin + frame.time_s - video.info.start_s
                if due > self._stop_at:
                    return
                time.sleep(max(0.0, due - time.perf_counter()))
                self.late.append((due, time.perf_counter() - due))
                future = self._engine.submit(frame.image)
                future.add_done_callback(functools.partial(self._answered, due))
                self.futures.append(future)

    def kept_up(self, since: float) -> bool:
        """Whether all went well from then on."""
        taken = all(by < EVERY / RATE_FPS for due, by in self.late if due > since)
        return taken and all(by < 1 for due, by in self.delays if due > since)

    def _answered(self, due: float, future: Any) -> None:  # noqa: ANN401
        self.delays.append((due, time.perf_counter() - due))
        outcome = future.result()
        self.errors += outcome.error is not None
        self.faces += 0 if outcome.value is None else len(outcome.value)


def streams(bench: Bench) -> None:
    """So many streams at their own pace through one engine."""
    options = bench.options
    path = clip(bench, 8)
    pack = bench.small_pack() if options.quick else r50_pack(bench.work, options.models)
    batch = 8 if options.quick else 64
    settings = bench.settings(pack, detect=batch, embed=batch, max_images=512, max_bytes=8 << 30)
    with opened(settings) as (engine, _):
        for count in options.streams:
            begin = time.perf_counter() + 1.0 + 0.03 * count  # all have to be open by then
            end = begin + options.seconds
            made = [
                Stream(engine, path, decoder(bench), begin + number / count / RATE_FPS * EVERY, end)
                for number in range(count)
            ]
            for stream in made:
                stream.start()
            time.sleep(max(0.0, begin - time.perf_counter()))
            used, started = time.process_time(), time.perf_counter()
            time.sleep(max(0.0, end - time.perf_counter()))
            busy = (time.process_time() - used) / (time.perf_counter() - started)
            memory = used_bytes()
            for stream in made:
                stream.join(30)
                concurrent.futures.wait(stream.futures, 60)
            since = end - options.seconds / 4
            late = [by for stream in made for due, by in stream.late if due > since]
            delays = [by for stream in made for due, by in stream.delays if due > since]
            figures = {
                "kept_up": sum(stream.kept_up(since) for stream in made),
                "late_ms_p99": 1e3 * float(np.percentile(late, 99)),
                "answer_ms_p50": 1e3 * float(np.percentile(delays, 50)),
                "answer_ms_p99": 1e3 * float(np.percentile(delays, 99)),
                "analyzed_per_s": sum(len(stream.late) for stream in made) / options.seconds,
                "faces_per_s": sum(stream.faces for stream in made) / options.seconds,
                "errors": sum(stream.errors for stream in made),
                "processors_busy": busy,
                "device_bytes": memory,
            }
            bench.keep("streams", **{str(count): figures})
            if figures["kept_up"] < 0.5 * count:
                break


STAGES = {"agree": agree, "decode": decode, "streams": streams}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", help=f"all, or a comma-separated list of {', '.join(STAGES)}")
    parser.add_argument("--work", type=Path, required=True, help="for packs, graphs and clips")
    parser.add_argument("--photos", type=Path, required=True, help="folder with the clip somewhere in it")
    parser.add_argument("--models", type=Path, help="folder of the model files; default: models/ beside the photos")
    parser.add_argument("--clip", default="facenet_pytorch_video.mp4", help="its name")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--readers", type=numbers, default=(1, 4, 16, 48))
    parser.add_argument("--streams", type=numbers, default=(32, 64, 96, 128, 192, 256))
    parser.add_argument("--compiling", choices=["tune", "fuse", "none"], default="fuse", help="of the detector")
    parser.add_argument("--engine", type=Path, help="folder that `gpu.py measure` saved R50's kernels in")
    parser.add_argument("--quick", action="store_true", help="small networks")
    options = parser.parse_args()
    options.models = options.models or options.photos / "models"
    logging.disable(logging.WARNING)
    if options.engine is not None:
        use_engine(options.engine)
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for name in STAGES if options.what == "all" else options.what.split(","):
        STAGES[name](bench)


if __name__ == "__main__":
    main()
