"""The torch backend on a CUDA device: an ArcFace network of random weights, from uint8 chips on the host and back.

    python benchmarks/torch_gpu.py [--network iresnet50] [--buckets 8,256] [--precision fp16]

For each bucket: faces/s through `TorchRunner` (copies included), through the replayed graph alone, and through the
same module run by PyTorch eagerly in a CUDA graph, in one run. Answers are compared with float32 on the CPU. Prints a
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from facefleet.backends import InputContract, RunnerOptions
from facefleet.backends.torch import runner as torch_runner
from facefleet.backends.torch.importer import module_from_onnx
from facefleet.models.build.cast import cast_graph
from facefleet.models.build.from_torch import onnx_from_torch
from facefleet.models.nets import NETWORKS, LoadedNetwork

CONTRACT = InputContract("rgb", (127.5,) * 3, (127.5,) * 3)


def random_network(name: str) -> LoadedNetwork:
    """A network of random weights whose activations neither vanish nor explode."""
    torch.manual_seed(0)
    spec = NETWORKS[name]
    module = spec.build().eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_var.uniform_(0.5, 1.5)
            layer.running_mean.normal_(0, 0.1)
    return LoadedNetwork(
        module=module,
        name=name,
        family=spec.family,
        color="rgb",
        mean=CONTRACT.mean,
        std=CONTRACT.std,
        size_px=(112, 112),
        outputs=("output",),
        dimension=512,
    )


def seconds_each(work: Any, least_s: float = 2.0) -> float:  # noqa: ANN401
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < least_s:
        work()
        count += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def eager_graph(model: Path, bucket: int) -> Any:  # noqa: ANN401
    """The same module, not compiled, in a CUDA graph."""
    module = torch_runner.PictureNetwork(module_from_onnx(model), CONTRACT).eval().cuda()
    module = module.to(memory_format=torch.channels_last)
    pictures = torch.randint(0, 256, (bucket, 112, 112, 3), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            module(pictures)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            module(pictures)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="iresnet50")
    parser.add_argument("--buckets", default="8,256")
    parser.add_argument("--precision", default="fp16", choices=["fp32", "fp16", "bf16"])
    options = parser.parse_args()
    buckets = tuple(int(each) for each in options.buckets.split(","))
    torch_runner.BUCKETS = buckets
    chips = np.random.default_rng(0).integers(0, 256, (max(buckets), 112, 112, 3)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        plain, model = Path(folder) / "plain.onnx", Path(folder) / "model.onnx"
        graph, _ = onnx_from_torch(random_network(options.network), exporter="script")
        onnx.save(graph, plain)
        onnx.save(graph if options.precision == "fp32" else cast_graph(graph, options.precision), model)
        with torch_runner.TorchRunner(plain, CONTRACT, RunnerOptions(threads=16)) as reference:
            want = reference.run(chips[:8])[0]
        settings = RunnerOptions(
            device="cuda:0", precision=options.precision, warm=((112, 112),), max_batch=max(buckets)
        )
        started = time.perf_counter()
        runner = torch_runner.TorchRunner(model, CONTRACT, settings)
        with runner:
            opened = time.perf_counter() - started
            got = runner.run(chips[:8])[0]
            cosine = np.einsum("nd,nd->n", want, got) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
            rows = []
            for bucket in buckets:
                slots = runner._slots(bucket, 112, 112)
                slot = slots.get()
                slots.put(slot)
                assert slot._graph is not None
                rows.append(
                    {
                        "batch": bucket,
                        "runner_faces_per_s": round(bucket / seconds_each(lambda b=bucket: runner.run(chips[:b]))),
                        "graph_faces_per_s": round(bucket / seconds_each(slot._graph.replay)),
                        "eager_graph_faces_per_s": round(bucket / seconds_each(eager_graph(model, bucket).replay)),
                    }
                )
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "network": options.network,
                "precision": options.precision,
                "open_s": round(opened, 1),
                "cosine_min": round(float(cosine.min()), 6),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
