"""Streams, memory and restarts of the GPU pipeline."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from facefleet import Engine
from gpu_bench import Bench, opened
from gpu_peers import r50_pack
from gpu_timing import used_bytes, utilization


def streams(bench: Bench) -> None:
    """Batch x streams of the embedder: faces a second, how busy the device says it is, memory."""
    import torch

    from facefleet.models.load import load_models

    pack = bench.small_pack() if bench.options.quick else r50_pack(bench.work, bench.options.models)
    with contextlib.ExitStack() as stack:
        models = load_models(str(pack), bench.settings(pack), stack, roles=("embedder",))
        assert models.embedder is not None
        runner, table = models.embedder.runner, []
        for size, counts in ((8, (1, 2, 4, 8)), (64, (1, 2, 4)), (256, (1, 2))):
            bound: list[Any] = []
            for count in counts:
                bound += [runner.bind(size, 112, 112) for _ in range(count - len(bound))]  # type: ignore[attr-defined]
                lanes = [each.enqueue.stream for each in bound]
                torch.cuda.synchronize()
                started, done = time.perf_counter(), 0
                while time.perf_counter() - started < bench.options.seconds / 3:
                    for lane, each in zip(lanes * 4, bound * 4, strict=True):
                        with torch.cuda.stream(lane):
                            each.enqueue()
                    busy = utilization()
                    torch.cuda.synchronize()
                    done += 4 * count * size
                rate = done / (time.perf_counter() - started)
                held = torch.cuda.memory_reserved() / 2**20
                table.append({"batch": size, "streams": count, "faces_per_s": rate, "busy": busy, "held_mib": held})
        bench.keep("streams", table=table)


def memory(bench: Bench) -> None:
    """Mixed batches, one after the other, and the device's memory at tenths of the way."""
    import torch

    turns = 30 if bench.options.quick else bench.options.turns
    draw = np.random.default_rng(0)
    paths = bench.photos()
    on_card = bench.options.device != "cpu"
    with opened(bench.settings(bench.small_pack(), detect=8, embed=64)) as (_, scheduler):
        resident = scheduler._resident
        decode = scheduler._stages.decoder.decode
        images = [scheduler._of_image(decode(str(path))) for path in paths if path.stat().st_size < 200_000]
        slots, held, done = resident.slots, [], 0
        started = time.perf_counter()
        for turn in range(turns):
            slot = slots[turn % len(slots)]
            batch = [images[k] for k in draw.integers(0, len(images), int(draw.integers(1, 9)))]
            filled, _ = resident.fill(slot, batch)
            resident.find(slot, len(batch), filled).wait()
            _, rows = resident.read(slot, len(batch))
            for start in range(0, len(rows), resident.chips):
                stop = min(len(rows), start + resident.chips)
                resident.cut(slot, start, stop, 0, embed=True)
                resident.finish(stop - start, resident.results[0], embed=True, chips=False)[0].wait()
            slot.free = resident.embedding.mark()
            done += 1
            if turn % max(1, turns // 10) == 0:
                held.append(_used(torch) if on_card else 0)
            if time.perf_counter() - started > bench.options.limit:
                break
        held.append(_used(torch) if on_card else 0)
        bench.keep("memory", batches=done, seconds=time.perf_counter() - started, used_bytes=held)


def _used(torch: Any) -> int:  # noqa: ANN401
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def restart(bench: Bench) -> None:
    """Kill the worker of an isolated engine while it works; the device's memory before, with, after, and at the end."""
    data = bench.t1()
    settings = bench.settings(bench.small_pack(), detect=8, embed=64)
    settings = replace(settings, runtime=replace(settings.runtime, isolated=True))
    before = used_bytes()
    with Engine(settings) as engine:
        faces = [len(outcome.unwrap()) for outcome in engine.map([data] * 64)]
        running = used_bytes()
        worker = psutil.Process().children()[0]
        futures = [engine.submit(data) for _ in range(64)]
        worker.kill()
        answered = [future.result() for future in futures]
        after = used_bytes()
        (second,) = engine.workers()
    time.sleep(1)
    bench.keep(
        "restart", before=before, running=running, after_restart=after, closed=used_bytes(), restarts=second.restarts,
        answered=sum(outcome.error is None for outcome in answered), asked=64, faces=faces[0],
    )  # fmt: skip
