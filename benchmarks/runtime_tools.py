"""`facefleet bench model` beside the runtimes' own tools, in one run.

These are OpenVINO's benchmark_app, and for ONNX Runtime, whose onnxruntime_perf_test is in no wheel, a loop over
`run_with_iobinding`, which is what that does.

    python benchmarks/runtime_tools.py [--networks opencv:detector scrfd_500m sface] [--batches 1,2,4,8,16,32]

Every setting is measured by one and at once by the other, round after round; shown are medians of throughput and their
ratio. `FACEFLEET_DATA` names the folder with models/scrfd; without it SCRFD is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from facefleet.backends import RunnerOptions, create_runner
from facefleet.backends.pictures import with_picture_input
from facefleet.bench.model import Cell, Effort, run_cell
from facefleet.bench.networks import Network, find_networks
from facefleet.bench.results import versions
from facefleet.config import available_threads, this_machine
from facefleet.packs import Store

THREADS = available_threads()


def options(network: Network, batch: int, streams: int) -> RunnerOptions:
    return RunnerOptions(
        instances=streams, threads=THREADS, warm=(network.size,), chunk=batch, whole_batches=True, max_batch=32
    )


def benchmark_app(network: Network, store: Store, batch: int, streams: int, folder: Path) -> Callable[[float], float]:
    """Images per second by OpenVINO's tool, on the very graph that our runner compiles."""
    import openvino as ov

    runner: Any = create_runner(
        "openvino",
        network.prepared(store, "openvino", "fp32").path,
        network.contract,
        options(network, batch, streams),
    )
    runner._core = ov.Core()
    model = folder / f"{network.name.replace(':', '_')}_{batch}.xml"
    if not model.exists():
        ov.serialize(runner._built(network.size, batch), model)

    def run(seconds: float) -> float:
        command = [
            *(sys.executable, "-c", "from openvino.tools.benchmark.main import main; main()"),
            *("-m", str(model), "-d", "CPU", "-hint", "none", "-nstreams", str(streams), "-nthreads", str(THREADS)),
            *("-infer_precision", "f32", "-t", str(max(1, round(seconds))), "-nireq", str(streams)),
            *("-api", "async" if streams > 1 else "sync", "-pin", "NO"),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"Throughput:\s+([\d.]+) FPS", answer.stdout)
        if found is None:
            raise SystemExit(f"{' '.join(command)}\n{answer.stdout[-2000:]}\n{answer.stderr[-2000:]}")
        return float(found[1])

    return run


def plain_onnxruntime(network: Network, store: Store, batch: int, streams: int) -> Callable[[float], float]:
    """Images per second of a loop with bound buffers, as many threads as streams."""
    import onnxruntime as ort

    choices = ort.SessionOptions()
    choices.log_severity_level = 3
    choices.intra_op_num_threads = max(1, THREADS // streams)
    choices.inter_op_num_threads = 1
    choices.add_session_config_entry("session.intra_op.allow_spinning", "0")
    graph = with_picture_input(network.prepared(store, "onnxruntime", "fp32").path, network.contract)
    session = ort.InferenceSession(graph, choices, providers=["CPUExecutionProvider"])
    pictures = np.random.default_rng(0).integers(0, 256, (batch, *network.size, 3), np.uint8)

    def run(seconds: float) -> float:
        rates: list[float] = []

        def work() -> None:
            binding = session.io_binding()
            binding.bind_cpu_input("pictures", pictures)
            for output in session.get_outputs():
                binding.bind_output(output.name, "cpu")
            session.run_with_iobinding(binding)
            started, count = time.perf_counter(), 0
            while time.perf_counter() - started < seconds or not count:
                session.run_with_iobinding(binding)
                count += 1
            rates.append(batch * count / (time.perf_counter() - started))

        threads = [threading.Thread(target=work) for _ in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(rates)

    return run


def ours(network: Network, store: Store, backend: str, batch: int, streams: int) -> Callable[[float], float]:
    runner = create_runner(
        backend, network.prepared(store, backend, "fp32").path, network.contract, options(network, batch, streams)
    )
    runner.open()
    cell = Cell(network.name, backend, "fp32", *network.size, batch, streams)
    run_cell(runner, cell, Effort(iterations=1), "cpu")
    return lambda seconds: run_cell(runner, cell, Effort(seconds=seconds), "cpu").images_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=["opencv:detector", "scrfd_500m", "opencv:embedder"])
    parser.add_argument("--backends", nargs="*", default=["openvino", "onnxruntime"])
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--streams", default="1,2")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    store = Store()
    data = os.environ.get("FACEFLEET_DATA")
    names = []
    for name in arguments.networks:
        if name.startswith("scrfd"):
            if data is None:
                print(f"{name} is left out: FACEFLEET_DATA is not set")
                continue
            names.append(str(Path(data) / "models" / "scrfd" / f"{name}.onnx"))
        else:
            names.append(name)
    machine = this_machine()
    print(f"{machine.cpu}, {machine.threads} threads, load {os.getloadavg()[0]:.2f}; {versions()}")
    print(f"{'network':18} {'backend':12} {'batch':>5} {'streams':>7} {'ours':>9} {'theirs':>9} {'ratio':>6}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for network in find_networks(names, store):
            for backend in arguments.backends:
                for batch in map(int, arguments.batches.split(",")):
                    for streams in map(int, arguments.streams.split(",")):
                        mine = ours(network, store, backend, batch, streams)
                        theirs = (
                            benchmark_app(network, store, batch, streams, Path(folder))
                            if backend == "openvino"
                            else plain_onnxruntime(network, store, batch, streams)
                        )
                        figures = [
                            (mine(arguments.seconds), theirs(arguments.seconds)) for _ in range(arguments.rounds)
                        ]
                        left, right = (statistics.median(each) for each in zip(*figures, strict=True))
                        rows.append([network.name, backend, batch, streams, left, right, left / right])
                        print(
                            f"{network.name:18} {backend:12} {batch:5} {streams:7} {left:9.1f} {right:9.1f} "
                            f"{left / right:6.3f}",
                            flush=True,
                        )
    ratios = [row[6] for row in rows]
    within = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
    print(f"{within} of {len(ratios)} within 5 %; median ratio {statistics.median(ratios):.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine.as_json(), "rows": rows}))


if __name__ == "__main__":
    main()
