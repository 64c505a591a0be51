"""Embedding on one NVIDIA GPU: a random-weight ArcFace network through the torch backend, against its peers and limits.

    python benchmarks/gpu.py prepare --folder work --network iresnet50     # any machine: graphs and a CPU reference
    python benchmarks/gpu.py measure --folder work --network iresnet50     # the machine with the GPU

Weights are random (seed 0), activations kept in range. `measure` opens the network (tuning it), saves the engine, holds
its answers against ONNX Runtime in float32 on the CPU, times every bucket, opens the engine again in a new process,
and prints a table last. Peers are timed in the same run: PyTorch eagerly in a CUDA graph, and ONNX Runtime's CUDA
provider where it is installed. The limits are measured too: a matrix product and a copy. Beside it lie one JSON file
with everything, and with matplotlib a plot of each layer's time against its floor.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.backends import InputContract, RunnerOptions
from gpu_timing import call_ms, captured, device_state, limits, replay_ms

CONTRACT = InputContract("rgb", (127.5,) * 3, (127.5,) * 3)
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SIZE = (112, 112)


def prepare(folder: Path, network: str) -> None:
    """Graphs in float32 and fp16, chips, and what ONNX Runtime answers to them on the CPU."""
    import onnx
    import torch

    from facefleet.models.build.cast import cast_graph
    from facefleet.models.build.from_torch import onnx_from_torch
    from facefleet.models.nets import NETWORKS, LoadedNetwork

    torch.manual_seed(0)
    spec = NETWORKS[network]
    module = spec.build().eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            layer.running_var.uniform_(0.5, 1.5)
            layer.running_mean.normal_(0, 0.1)
            if layer.affine:
                torch.nn.init.normal_(layer.weight, 1, 0.1)
                torch.nn.init.normal_(layer.bias, 0, 0.1)
        if isinstance(layer, torch.nn.PReLU):
            torch.nn.init.uniform_(layer.weight, 0, 0.5)
    loaded = LoadedNetwork(
        module=module, name=network, family=spec.family, color="rgb", mean=CONTRACT.mean, std=CONTRACT.std,
        size_px=_SIZE, outputs=("output",), dimension=512,
    )  # fmt: skip
    graph, _ = onnx_from_torch(loaded, exporter="script")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(graph, folder / f"{network}.onnx")
    onnx.save(cast_graph(graph, "fp16"), folder / f"{network}.fp16.onnx")


def reference(folder: Path, network: str, chips: np.ndarray) -> np.ndarray:
    """Float32 on the CPU through ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / f"{network}.onnx"), providers=["CPUExecutionProvider"])
    images = (chips.astype(np.float32).transpose(0, 3, 1, 2) - 127.5) / 127.5
    return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0])


def chips_of(count: int, seed: int) -> np.ndarray:
    """Smooth random chips, (n, 112, 112, 3) uint8, no two alike: noise would average out to one answer."""
    import cv2

    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 7, 7, 3)).astype(np.uint8)
    return np.stack([cv2.resize(each, _SIZE, interpolation=cv2.INTER_CUBIC) for each in coarse])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", a, b) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


def eager_ms(model: Path, bucket: int) -> float:
    """The same fp16 graph by PyTorch eagerly, channels-last, in a CUDA graph."""
    import torch

    from facefleet.backends.torch.importer import module_from_onnx
    from facefleet.backends.torch.runner import PictureNetwork

    module = PictureNetwork(module_from_onnx(model), CONTRACT).eval().cuda().to(memory_format=torch.channels_last)
    pictures = torch.randint(0, 256, (bucket, *_SIZE, 3), dtype=torch.uint8, device="cuda")
    return replay_ms(*captured(lambda: module(pictures)))[1]


def onnxruntime_cuda_ms(folder: Path, network: str, chips: np.ndarray) -> dict[str, float]:
    """ONNX Runtime's CUDA provider: one face a call with arrays in and out, and the best batch; empty without it."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return {}
    session = onnxruntime.InferenceSession(str(folder / f"{network}.onnx"), providers=["CUDAExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        return {}
    name = session.get_inputs()[0].name
    found = {}
    for bucket in (1, 256):
        images = (chips[:bucket].astype(np.float32).transpose(0, 3, 1, 2) - 127.5) / 127.5
        found[str(bucket)] = call_ms(lambda x=images: session.run(None, {name: x}))
    return found


def options_of(buckets: tuple[int, ...], engine: Path | None) -> RunnerOptions:
    return RunnerOptions(
        device="cuda:0", precision="fp16", warm=(_SIZE,), max_batch=max(buckets), engine=engine, threads=8
    )


def opened(folder: Path, network: str, buckets: tuple[int, ...], engine: Path | None) -> tuple[Any, float]:
    """An open runner, and the seconds that opening took."""
    from facefleet.backends.torch import runner as torch_runner

    torch_runner.BUCKETS = buckets
    started = time.perf_counter()
    made = torch_runner.TorchRunner(folder / f"{network}.fp16.onnx", CONTRACT, options_of(buckets, engine))
    made.open()
    return made, time.perf_counter() - started


def parity(runner: Any, want: np.ndarray, chips: np.ndarray, buckets: tuple[int, ...]) -> dict[str, float]:  # noqa: ANN401
    """Least cosine against the reference at every batch, with identical rows and another order in it."""
    worst = {}
    for bucket in buckets:
        turn = np.arange(bucket)[::-1] % len(chips)
        got = runner.run(chips[turn])[0]
        worst[str(bucket)] = float(cosines(got, want[turn]).min())
    return worst


def layers(runner: Any, bucket: int, peak: dict[str, float]) -> list[dict[str, Any]]:  # noqa: ANN401
    """Each kind of step at a batch: its time as tuned, alone, and its floors by arithmetic and by bytes."""
    network = runner._fused
    plan, choice = network.plan, network.choices[bucket]
    counts = Counter(plan.signature(step) for step in plan.steps)
    rows = []
    for step in plan.steps:
        name = plan.signature(step)
        if not counts[name]:
            continue
        chosen = choice.steps[name]
        tiles = chosen.tiles
        rows.append(
            {
                "layer": name,
                "times": counts[name],
                "us": chosen.microseconds,
                "flop_floor_us": bucket * plan.gflop(step) / peak["tflops"] * 1e3,
                "byte_floor_us": plan.moved_bytes(step, bucket) / peak["tbytes_per_s"] / 1e6,
                "kernel": f"cudnn {chosen.plan}"
                if tiles is None
                else f"{tiles.kernel} {tiles.pixels}x{tiles.channels}x{tiles.depth}/{tiles.split}",
            }
        )
        counts[name] = 0
    return rows


def plot(rows: list[dict[str, Any]], title: str, target: Path) -> None:
    """Bars: what each kind of layer takes, split at its floor."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 0.36 * len(rows) + 1.6))
    places = np.arange(len(rows))[::-1]
    taken = np.array([row["us"] * row["times"] for row in rows])
    flop = np.array([row["flop_floor_us"] * row["times"] for row in rows])
    moved = np.array([row["byte_floor_us"] * row["times"] for row in rows])
    axes.barh(places, taken, color="#9ecae1", label="measured")
    axes.barh(places + 0.18, flop, height=0.3, color="#08519c", label="floor by matrix products")
    axes.barh(places - 0.18, moved, height=0.3, color="#e6550d", label="floor by memory")
    axes.set_yticks(places, [f"{row['times']}x {row['layer']}" for row in rows], fontsize=7)
    axes.set_xlabel("microseconds a batch")
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def measure(
    folder: Path,
    network: str,
    buckets: tuple[int, ...],
    peers: tuple[int, ...],
    out: Path,
    *,
    known: Path | None = None,
) -> None:
    import torch

    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"network": network, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    report["limits"] = peak = limits()
    torch.cuda.empty_cache()
    print(json.dumps(peak), device_state(), flush=True)
    runner, report["first_open_s"] = opened(folder, network, buckets, known)
    print(f"opened and tuned in {report['first_open_s']:.1f} s", flush=True)
    engine = out / f"engine-{network}"
    engine.mkdir(exist_ok=True)
    runner.save(engine)
    report["engine_bytes"] = sum(path.stat().st_size for path in engine.iterdir())
    chips = chips_of(16, 1)
    want = reference(folder, network, chips)
    apart = cosines(want, np.roll(want, 1, axis=0))
    report["cosine_between_chips"] = float(apart.mean())
    report["cosine_min"] = parity(runner, want, chips, buckets)
    print(f"parity: {report['cosine_min']}, different chips {apart.mean():.3f}", flush=True)
    gflop = sum(runner._fused.plan.gflop(step) for step in runner._fused.plan.steps)
    many = chips_of(16, 2)
    report["rows"] = rows = []
    for bucket in buckets:
        slots = runner._slots(bucket, *_SIZE)
        slot = slots.get()
        rested, ms = replay_ms(slot._graph, slot._stream)
        state = device_state()
        slots.put(slot)
        batch = many[np.arange(bucket) % len(many)]
        tflops = gflop * bucket / ms
        row = {
            "batch": bucket,
            "ms": ms,
            "faces_per_s": 1e3 * bucket / ms,
            "rested_faces_per_s": 1e3 * bucket / rested,
            "tflops": tflops,
            "share": tflops / peak["tflops"],
            "run_faces_per_s": 1e3 * bucket / call_ms(lambda b=batch: runner.run(b)),
            "layers_ms": sum(r["us"] * r["times"] for r in layers(runner, bucket, peak)) / 1e3,
            "family": runner._fused.choices[bucket].family,
            "state": state,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    report["layers"] = {str(bucket): layers(runner, bucket, peak) for bucket in buckets}
    report["memory_bytes"] = torch.cuda.max_memory_allocated()
    runner.close()
    second = [sys.executable, __file__, "again", "--folder", str(folder), "--network", network, "--out", str(out)]
    second += ["--buckets", ",".join(map(str, buckets))]
    started = time.perf_counter()
    answer = subprocess.run(second, capture_output=True, text=True, check=False)
    report["second_process_s"] = time.perf_counter() - started
    report["second"] = answer.stdout.strip().splitlines()[-1:] or answer.stderr.strip().splitlines()[-3:]
    print(f"second process: {report['second_process_s']:.1f} s in all; {report['second']}", flush=True)
    report["eager_ms"] = {str(b): eager_ms(folder / f"{network}.fp16.onnx", b) for b in peers}
    report["onnxruntime_cuda_ms"] = onnxruntime_cuda_ms(folder, network, many[np.arange(256) % len(many)])
    (out / f"{network}.json").write_text(json.dumps(report, indent=1))
    largest = str(max(buckets))
    plot(report["layers"][largest], f"{network}, batch {largest}, {report['device']}", out / f"{network}-roofline.png")
    show(report)


def show(report: dict[str, Any]) -> None:
    """The tables."""
    largest = list(report["layers"])[-1]
    print(f"\nlayers at batch {largest}: times, us each, share of the higher floor, kernel")
    for row in report["layers"][largest]:
        floor = max(row["flop_floor_us"], row["byte_floor_us"])
        print(f"{row['times']:3d} {row['us']:8.1f} {floor / row['us']:5.0%}  {row['layer']}  [{row['kernel']}]")
    print(f"\n{report['network']} fp16 on {report['device']}, torch {report['torch']}")
    print(f"first open {report['first_open_s']:.1f} s, second process {report['second_process_s']:.1f} s")
    peak = report["limits"]
    print(f"matrix product {peak['tflops']:.0f} TFLOP/s kept up, {peak['tflops_rested']:.0f} after a rest; ", end="")
    print(f"copy {peak['tbytes_per_s']:.2f} TB/s")
    print("batch       ms  faces/s  rested  TFLOP/s share  arrays in+out  eager graph  times  least cosine  layout")
    for row in report["rows"]:
        bucket = str(row["batch"])
        eager = report["eager_ms"].get(bucket)
        peer = f"{1e3 * row['batch'] / eager:11.0f} {eager / row['ms']:5.2f}x" if eager else f"{'':18s}"
        print(
            f"{bucket:>5s} {row['ms']:8.3f} {row['faces_per_s']:8.0f} {row['rested_faces_per_s']:7.0f} "
            f"{row['tflops']:8.0f} {row['share']:5.0%} "
            f"{row['run_faces_per_s']:14.0f}  {peer}  {report['cosine_min'][bucket]:.6f}  {row['family']}"
        )
    for bucket, ms in report["onnxruntime_cuda_ms"].items():
        print(f"onnxruntime CUDA float32, batch {bucket}, arrays in and out: {1e3 * int(bucket) / ms:.0f} faces/s")


def again(folder: Path, network: str, buckets: tuple[int, ...], out: Path) -> None:
    """What a second process does: open the engine, answer once."""
    runner, seconds = opened(folder, network, buckets, out / f"engine-{network}")
    got = runner.run(chips_of(1, 1))[0]
    print(json.dumps({"open_s": round(seconds, 2), "norm": float(np.linalg.norm(got))}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "measure", "again"])
    parser.add_argument("--folder", type=Path, required=True, help="where the graphs are")
    parser.add_argument("--network", default="iresnet50")
    parser.add_argument("--buckets", default=",".join(map(str, BUCKETS)))
    parser.add_argument("--peers", default="1,8,64,256", help="batches that PyTorch's eager graph is timed at")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--known", type=Path, help="engine folder of a network of the same layers, to be used")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.verbose:
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(message)s", stream=sys.stdout)
    buckets, peers = (tuple(int(n) for n in text.split(",") if n) for text in (options.buckets, options.peers))
    if options.what == "prepare":
        prepare(options.folder, options.network)
    elif options.what == "measure":
        measure(options.folder, options.network, buckets, peers, options.out, known=options.known)
    else:
        again(options.folder, options.network, buckets, options.out)


if __name__ == "__main__":
    main()
