"""From JPEG bytes to embeddings on one NVIDIA GPU: speed, agreement with the CPU's way, memory, restarts.

    python benchmarks/gpu_pipeline.py reference --work work --photos DATA --models DATA/models   # any machine
    python benchmarks/gpu_pipeline.py all --work work --photos DATA --models DATA/models --out results

`reference` writes what the numpy functions and ONNX Runtime find in every photo of identity/ and detection/ with the
real small networks. The other stages, each alone or `all`, run on the device; each has its own time, a failing one does
not stop the rest, and what is known is written at once to a JSON file in `--out`. ``--device cpu --quick`` tries the
script itself without a GPU.

Stages: ``parity`` with the reference; ``speed`` from end to end and of each part alone (SCRFD-2.5g at 640, R50 of
random weights in fp16); ``host``: its threads alone, the device left out; ``peers``: insightface and ONNX Runtime with
the CUDA provider, where they are installed; ``streams`` of R50; ``memory`` over mixed batches; ``restart`` of a killed
worker.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from facefleet import Engine
from gpu_bench import Bench, opened
from gpu_parity import parity, reference
from gpu_peers import peers, r50_pack, use_engine
from gpu_soak import memory, restart, streams
from gpu_timing import device_ms


def kept_up(engine: Engine, source: Iterator[Any], seconds: float) -> tuple[float, float, int]:
    """Pictures and faces a second, and errors, once the pipeline is full."""
    stop = time.perf_counter() + seconds
    pictures = faces = errors = 0
    first = 0.0
    for number, (_, outcome) in enumerate(
        engine.as_ready(itertools.takewhile(lambda _: time.perf_counter() < stop, source))
    ):
        if number == engine._running.max_images:  # type: ignore[union-attr]
            first, pictures, faces = time.perf_counter(), 0, 0
        pictures += 1
        errors += outcome.error is not None
        faces += 0 if outcome.value is None else len(outcome.value)
    took = time.perf_counter() - (first or stop - seconds)
    return pictures / took, faces / took, errors


def speed(bench: Bench) -> None:
    """End to end on t1.jpg and on all JPEGs, the card decoding and then the processors, and each part alone."""
    quick = bench.options.quick
    seconds = 2.0 if quick else bench.options.seconds
    pack = bench.small_pack() if quick else r50_pack(bench.work, bench.options.models)
    data, jpegs = bench.t1(), [p.read_bytes() for p in bench.photos() if p.suffix.lower() != ".png"]
    sizes = (2,) if quick else bench.options.batches
    for size in sizes:
        settings = bench.settings(pack, detect=size, embed=8 if quick else 256, max_images=8 * size, max_bytes=4 << 30)
        started = time.perf_counter()
        with opened(settings) as (engine, scheduler):
            bench.keep(f"speed {size}", open_s=time.perf_counter() - started, plan=scheduler._resident.plan())
            kept_up(engine, itertools.repeat(data), min(seconds, 1.0))
            image, face, errors = kept_up(engine, itertools.repeat(data), seconds)
            bench.keep(f"speed {size}", images_per_s=image, faces_per_s=face, errors=errors)
            alone(bench, size, scheduler, data, image)
            image, face, errors = kept_up(engine, itertools.cycle(jpegs), seconds)
            bench.keep(f"speed {size}", mixed_images_per_s=image, mixed_faces_per_s=face, mixed_errors=errors)
            card, scheduler._resident.card = scheduler._resident.card, None
            if card is not None:
                image, face, _ = kept_up(engine, itertools.repeat(data), seconds)
                bench.keep(f"speed {size}", images_per_s_processors_decode=image)


def host(bench: Bench) -> None:
    """What the threads of the host alone can do: everything on the device is left out, six made-up faces a photo."""
    from facefleet.pipeline.device.lanes import Mark

    size, data = 64, bench.t1()
    settings = bench.settings(bench.small_pack(), detect=size, embed=64, max_images=8 * size, max_bytes=4 << 30)
    with opened(settings) as (engine, scheduler):
        resident, draw = scheduler._resident, np.random.default_rng(0)

        def read(_: object, count: int) -> tuple[np.ndarray, np.ndarray]:
            heads = np.tile(np.array([6, 0, 0, 1], np.float32), (count, 1))
            return heads, draw.uniform(1, 2, (6 * count, 16)).astype(np.float32)

        for result in resident.results:
            result.fill_(0.5)
        resident.card = SimpleNamespace(takes=lambda _: True, close=lambda: None)
        resident.fill = lambda *_: (Mark(), [])
        resident.find = lambda *_: Mark()
        resident.read, resident.cut = read, lambda *_, **__: None
        resident.finish = lambda *_, **__: (Mark(), None)
        kept_up(engine, itertools.repeat(data), 1.0)
        used, started = time.process_time(), time.perf_counter()
        images, _, errors = kept_up(engine, itertools.repeat(data), bench.options.seconds)
        busy = (time.process_time() - used) / (time.perf_counter() - started)
        bench.keep("host", images_per_s=images, processors_busy=busy, errors=errors)


def median_ms(work: Callable[[], None], turns: int) -> float:
    work()
    times = []
    for _ in range(turns):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return 1e3 * statistics.median(times)


def alone(bench: Bench, size: int, scheduler: Any, data: bytes, reached: float) -> None:  # noqa: ANN401
    """Each part of the way alone, nothing beside it, in milliseconds a batch; and what they add up to."""
    import torch

    from facefleet.pipeline.device.answers import DeviceBatch, Found
    from facefleet.pipeline.device.lanes import Mark
    from facefleet.pipeline.photo import Photo

    resident, turns = scheduler._resident, 3 if bench.options.quick else 20
    photo = Photo(data, False)
    photo.loaded = scheduler._stages.decoder.read(data)
    slot, room = resident.slots[0], resident.chips
    pixels = scheduler._for_card(photo) or scheduler._of_image(scheduler._stages.decoder.decode(data))
    batch = [pixels] * size
    wait = torch.cuda.synchronize if resident.device.type == "cuda" else lambda: None
    marks: list[Any] = []

    def fill() -> None:
        marks[:] = [resident.fill(slot, batch, scheduler._copiers.map)[0]]
        wait()

    def find() -> None:
        resident.find(slot, size, marks[0])
        wait()

    result = resident.results[0]

    def embed() -> None:
        resident.cut(slot, 0, min(room, faces), 0, embed=True)
        resident.finish(room, result, embed=True, chips=False)
        wait()

    parts = {
        "header and plan": size * median_ms(lambda: scheduler._for_card(photo), turns),
        "fill": median_ms(fill, turns),
    }
    parts["find"] = median_ms(find, turns)
    heads, rows = resident.read(slot, size)
    faces = len(rows)
    runs = faces / room
    parts["cut and embed"] = runs * median_ms(embed, turns)

    def answer() -> None:
        made = DeviceBatch(None, [Found(photo, pixels.frame) for _ in range(size)], Mark(), [], 0.0, [])
        made.take(heads, rows, resident.dimension)
        made.results[:] = 1
        list(made.answers())

    parts["answers"] = median_ms(answer, turns)
    device = sum(parts[name] for name in ("fill", "find", "cut and embed"))
    bench.keep(
        f"speed {size}", ms_a_batch=parts, device_parts_images_per_s=1e3 * size / device,
        all_parts_images_per_s=1e3 * size / sum(parts.values()), share_of_parts=reached * device / 1e3 / size,
        faces_a_picture=faces / size,
    )  # fmt: skip
    if resident.device.type == "cuda":
        inside(bench, size, resident, slot)


def inside(bench: Bench, size: int, resident: Any, slot: Any) -> None:  # noqa: ANN401
    """What finding consists of, by events."""
    from facefleet.ops.cuda import letterbox_into

    bucket = resident.bucket(size)
    network = resident.detector._networks[resident.detector.sides[0], bucket]
    head, thresholds = resident.detector._head, slot.thresholds(bucket)
    side = resident.detector.sides[0]
    content = slot.contents(bucket)[0]
    bench.keep(
        f"speed {size}",
        letterbox_ms=device_ms(lambda: letterbox_into(network.input, slot.pictures, content)),
        detector_ms=device_ms(network.enqueue),
        heads_ms=device_ms(lambda: head.batch_candidates(network.outputs, side, side, thresholds)),
        chips_ms=device_ms(lambda: resident.cut(slot, 0, resident.chips, 0, embed=True)),
        embedder_ms=device_ms(resident.embedder._networks[-1].enqueue),
    )


STAGES = {
    "parity": parity, "speed": speed, "host": host, "peers": peers, "streams": streams, "memory": memory,
    "restart": restart,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help=f"reference, all, or a comma-separated list of {', '.join(STAGES)}")
    parser.add_argument("--work", type=Path, required=True, help="for packs, graphs and the reference")
    parser.add_argument("--photos", type=Path, required=True, help="folder with identity/ and detection/ and models/")
    parser.add_argument("--models", type=Path, help="folder of the model files; default: models/ beside the photos")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), default=(64,))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which `memory` ends")
    parser.add_argument("--compiling", choices=["tune", "fuse", "none"], default="fuse", help="of the detector")
    parser.add_argument("--engine", type=Path, help="folder that `gpu.py measure` saved R50's kernels in")
    parser.add_argument("--quick", action="store_true", help="few photos, small networks, short times")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.models = options.models or options.photos / "models"
    if options.verbose:
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(message)s", stream=sys.stdout)
    if options.engine is not None:
        use_engine(options.engine)
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    if options.what == "reference":
        reference(bench)
        return
    for name in STAGES if options.what == "all" else options.what.split(","):
        started = time.perf_counter()
        try:
            STAGES[name](bench)
        except Exception:
            traceback.print_exc(limit=8, file=sys.stdout)
        print(f"-- {name}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
