"""The device's way against numpy and ONNX Runtime, photo by photo, with the real small networks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import numpy as np

from facefleet import Engine
from facefleet.config import RuntimeSettings
from gpu_bench import Bench, opened


def reference(bench: Bench) -> None:
    """Every photo through numpy and ONNX Runtime in float32, into a file."""
    runtime = RuntimeSettings(backend="onnxruntime", precision="fp32", devices="cpu", status=False)
    settings = replace(bench.settings(bench.small_pack()), runtime=runtime)
    arrays: dict[str, np.ndarray] = {}
    paths = bench.photos()
    with Engine(settings) as engine:
        for path, outcome in zip(paths, engine.map(map(str, paths)), strict=True):
            name = str(path.relative_to(bench.options.photos))
            if outcome.value is not None:
                faces = outcome.value
                arrays[f"{name}|boxes"], arrays[f"{name}|vectors"] = faces.boxes, faces.embeddings
                arrays[f"{name}|scores"] = faces.scores
    bench.work.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(bench.work / "reference.npz", **arrays)  # type: ignore[arg-type]
    print(f"{len(paths)} photos, {sum(len(v) for k, v in arrays.items() if k.endswith('boxes'))} faces")


def parity(bench: Bench) -> None:
    """Boxes and embeddings of every photo against the reference, in fp32 and as is run."""
    known = np.load(bench.work / "reference.npz")
    paths = bench.photos()
    precisions: tuple[Literal["fp32", "fp16"], ...] = ("fp32", "fp16")
    for precision in precisions[:1] if bench.options.device == "cpu" else precisions:
        settings = bench.settings(bench.small_pack(), detect=8, embed=64)
        settings = replace(settings, runtime=replace(settings.runtime, precision=precision))
        started = time.perf_counter()
        with opened(settings) as (engine, _):
            opening = time.perf_counter() - started
            outcomes = list(engine.map(map(str, paths)))
        off: list[float] = []
        cosines: list[float] = []
        missing: list[str] = []
        for path, outcome in zip(paths, outcomes, strict=True):
            name = str(path.relative_to(bench.options.photos))
            if f"{name}|boxes" not in known or outcome.value is None:
                if (f"{name}|boxes" in known) != (outcome.value is not None):
                    missing.append(f"{name}: {outcome.error}")
                continue
            boxes, vectors, faces = known[f"{name}|boxes"], known[f"{name}|vectors"], outcome.value
            if len(boxes) != len(faces):
                missing.append(f"{name}: {len(boxes)} and {len(faces)} faces, scores {known[f'{name}|scores'][-2:]}")
            for box, vector in zip(boxes, vectors, strict=True):
                if not len(faces):
                    continue
                nearest = int(np.abs(faces.boxes - box).max(axis=1).argmin())
                distance = float(np.abs(faces.boxes[nearest] - box).max())
                if distance < 20:  # else it is another face, and counted above
                    off.append(distance)
                    cosines.append(float(faces.embeddings[nearest] @ vector))
        bench.keep(
            f"parity {precision}", photos=len(paths), faces=len(off), open_s=opening, box_px_max=max(off),
            box_px_p99=float(np.quantile(off, 0.99)), boxes_over_half=sum(d > 0.5 for d in off),
            cosine_min=min(cosines), cosines_below=sum(c < 0.999 for c in cosines), different=missing,
        )  # fmt: skip
